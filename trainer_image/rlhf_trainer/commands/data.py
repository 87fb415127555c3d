"""The process of `rlhf data` in the trainer's environment."""

import sys

from .interrupts import end_on_interrupt


def main() -> int:
    end_on_interrupt()
    from .inspect_data import main as inspect

    return inspect()


if __name__ == "__main__":
    sys.exit(main())

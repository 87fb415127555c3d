"""The process of `rlhf checkpoint export` in the trainer's environment."""

import sys

from .interrupts import end_on_interrupt


def main() -> int:
    end_on_interrupt()
    from ..export.snapshot import main as export

    return export()


if __name__ == "__main__":
    sys.exit(main())

"""The process of `rlhf replay verify` in the trainer's environment."""

import sys

from .interrupts import end_on_interrupt


def main() -> int:
    end_on_interrupt()
    from .verify_step import main as verify

    return verify()


if __name__ == "__main__":
    sys.exit(main())

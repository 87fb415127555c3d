"""The process of `rlhf env` in the trainer's environment."""

import sys

from .interrupts import end_on_interrupt


def main() -> int:
    end_on_interrupt()
    from .play_episodes import main as play

    return play()


if __name__ == "__main__":
    sys.exit(main())

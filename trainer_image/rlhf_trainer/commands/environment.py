"""The process of `rlhf env` in the trainer's environment. Ctrl-C ends it without a traceback, also while packages
load."""

import signal
import sys


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .play_episodes import main as play

    return play()


if __name__ == "__main__":
    sys.exit(main())

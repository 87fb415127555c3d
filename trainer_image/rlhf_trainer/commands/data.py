"""The process of `rlhf data` in the trainer's environment. Ctrl-C ends it without a traceback, also while packages
load."""

import signal
import sys


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .inspect_data import main as inspect

    return inspect()


if __name__ == "__main__":
    sys.exit(main())

"""Ctrl-C in the processes of commands: it ends them at once."""

import signal


def end_on_interrupt() -> None:
    """Has the kernel end this process at Ctrl-C, without a traceback, also while packages load; unless it ignores it,
    as in the background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

"""Kills a process when its parent ends, through the kernel (PR_SET_PDEATHSIG), without any code of its own."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """This process gets SIGKILL when the thread that started it ends, so start it from the parent's main thread. Check
    afterwards that the parent has not ended before the call. Linux only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

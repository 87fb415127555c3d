"""End of a process with its parent, by the kernel (PR_SET_PDEATHSIG): none of its own code need run for that."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """From now on this process gets SIGKILL when the thread that started it ends, by whatever: let that be its parent's
    main thread. Not if it has ended already: check that afterwards. Linux only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

"""The programs `rlhf` and `kubectl rlhf`. Ctrl-C while their modules load, which takes a second, ends them without a
traceback."""

import signal
import sys
from importlib import import_module


def rlhf() -> int:
    return _run("rlhf_operator.cli", "main")


def kubectl_rlhf() -> int:
    return _run("rlhf_operator.kubectl", "kubectl_main")


def kubectl_complete_rlhf() -> int:
    return _run("rlhf_operator.kubectl", "complete_main")


def _run(module: str, function: str) -> int:
    heeded = signal.getsignal(signal.SIGINT)
    if heeded is signal.default_int_handler:  # and not ignored, as for a program in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = getattr(import_module(module), function)
    signal.signal(signal.SIGINT, heeded)
    code: int = main()
    return code


if __name__ == "__main__":
    sys.exit(rlhf())

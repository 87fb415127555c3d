"""The process of `rlhf compare --picture` in the trainer's environment. Ctrl-C ends it without a traceback, also while
packages load."""

import signal
import sys


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pathlib import Path

    from rlhf_api.contract.run import PictureRequest
    from rlhf_api.host.printing import write_line

    from ..metrics.pictures import DPI, comparison_figure

    request = PictureRequest.model_validate_json(sys.stdin.read())
    try:
        figure = comparison_figure({name: Path(folder) for name, folder in request.runs.items()})
        figure.savefig(request.out, dpi=DPI)
    except (OSError, ValueError) as error:  # no folder, or a format that matplotlib does not write
        write_line(f"error: {request.out}: {error}", sys.stderr)
        return 2
    write_line(f"the curves of all runs are in {request.out}", sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

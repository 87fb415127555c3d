"""torchrun, with the exit code of the rank that failed first instead of its own."""

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(arguments: list[str]) -> int:
    """Runs torchrun's command line; hosts tell from the exit code whether starting again would help."""
    try:
        run.main(arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

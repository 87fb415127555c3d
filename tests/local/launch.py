"""`rlhf` as users run it, with the stand-in roles for the real ones."""

import os
import sys
from pathlib import Path

from rlhf_api.run import Process, RunConfig
from rlhf_operator.cli import main
from rlhf_operator.local import liveness


def fake(_config: RunConfig, process: Process, python: str) -> list[str]:
    return [python, str(Path(__file__).with_name("roles.py")), process.role.value]


if __name__ == "__main__":
    liveness.LIVE_SECONDS = float(os.environ.get("RLHF_TEST_LIVE_SECONDS", "20"))
    sys.exit(main(make=fake))

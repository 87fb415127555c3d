"""`rlhf` as users run it, with the stand-in roles for the real ones."""

import sys
from pathlib import Path

from rlhf_api.run import Process, RunConfig
from rlhf_operator.cli import main


def fake(_config: RunConfig, process: Process, python: str) -> list[str]:
    return [python, str(Path(__file__).with_name("roles.py")), process.role.value]


if __name__ == "__main__":
    sys.exit(main(make=fake))

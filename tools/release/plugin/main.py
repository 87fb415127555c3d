"""Runs `kubectl rlhf` with the packages beside this file: those of this Python, then those of every one."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here / f"cp{sys.version_info.major}{sys.version_info.minor}"), str(here / "any")]

from rlhf_operator.entry import kubectl_rlhf  # noqa: E402

sys.exit(kubectl_rlhf())

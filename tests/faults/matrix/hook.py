"""Rendezvous at named points of `rlhf_trainer.process.faults`: the process that reaches the armed point waits there
until the fault has been injected. The files lie beside the run's configuration, or in the folder that `FOLDER`
names."""

import os
import time
from pathlib import Path

ARMED, REACHED, GO = "fault-armed", "fault-reached", "fault-go-"
"""The first holds `<number> <process> <point>`; `GO` and that number let the process go on."""
FOLDER = "FAULTS_FOLDER"
DEADLINE_SECONDS = 60.0


def wait_at_point(point: str) -> None:
    """The hook: ranks but the first, and all but the armed process (`RLHF_NAME`) and its point, pass."""
    folder = os.environ.get(FOLDER) or Path(os.environ["RLHF_RUN_CONFIG"]).parent
    armed = Path(folder, ARMED)
    try:
        order = armed.read_text()
    except OSError:
        return
    number, _, place = order.partition(" ")
    if place != f"{os.environ['RLHF_NAME']} {point.partition(':')[0]}" or os.environ.get("RANK", "0") != "0":
        return
    try:
        armed.rename(armed.with_name(REACHED))  # one thread of one process gets it
    except OSError:
        return
    deadline, go = time.monotonic() + DEADLINE_SECONDS, armed.with_name(GO + number)
    while not go.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody let the process go on from {point}")
        time.sleep(0.005)

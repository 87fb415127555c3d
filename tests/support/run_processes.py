"""The live processes of a run, found by what their host gave them."""

from pathlib import Path

import psutil


def environ(process: psutil.Process) -> dict[str, str]:
    """Empty of a process that has ended, or is another user's."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def processes(workdir: Path, name: str | None = None) -> list[psutil.Process]:
    """Those with the run's configuration file; `name` is `<role>-<i>`."""
    config = str(workdir.resolve() / "run.json")
    return [
        process
        for process in psutil.process_iter()
        if (found := environ(process)).get("RLHF_RUN_CONFIG") == config and name in (None, found["RLHF_NAME"])
    ]

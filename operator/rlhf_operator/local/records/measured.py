"""Measurements of a run, from its work directory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError

from rlhf_api.algorithms import algorithm_of
from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.estimate.duration import PHASES, Batch, Machine, Work, rates
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.sizes import FileSizes
from rlhf_api.field_types import with_present_names
from rlhf_api.host import strict_json
from rlhf_api.spec import Spec

_DECIDE = (
    "algorithm",
    "model",
    "data",
    "sampling",
    "replay",
    "pretraining",
    "trainer",
    "generator",
    "reward",
    "reference",
)
"""Fields of a spec that decide what work a step is, beside the settings of its algorithm."""
_NAMED = 5
"""Fields named that differ between two jobs."""


@dataclass(frozen=True)
class Measured:
    """Measurements of a run: medians of its steps' `seconds` by phase, whole steps as `step`, and its sequences'
    average length as a share of the maximum. The first step, which has one-time costs, is left out if there are others.
    """

    folder: Path
    spec: Spec
    seconds: Mapping[str, float]
    filled: float

    @classmethod
    def read(cls, folder: Path) -> "Measured":
        """Reads a work directory. Raises InvalidJob if it holds no run with a step."""
        try:
            # Of an earlier release it has fields that are no more.
            spec = RunConfig.model_validate_json((folder / "run.json").read_bytes(), extra="ignore").spec
            lines = _steps(folder / "metrics.jsonl")
        except (OSError, ValueError, ValidationError) as error:
            problem = "run.json is none of this version" if isinstance(error, ValidationError) else error
            message = f"holds no run that can be read: {str(problem).splitlines()[0]}"
            raise InvalidJob([Problem(str(folder), message)]) from error
        if not lines:
            raise InvalidJob([Problem(str(folder), "the run has no step yet")])
        steps = lines[1:] or lines
        keys = {**{phase: f"{phase}_seconds" for phase in PHASES}, "step": "seconds"}
        durations = {name: [line[key] for line in steps if line.get(key)] for name, key in keys.items()}
        # With `weights.everySteps` most steps send nothing.
        sent = [line for line in steps if line.get("broadcast_bytes")]
        durations["broadcast"] = [line["broadcast_seconds"] for line in sent] or durations["broadcast"]
        return cls(
            folder,
            spec,
            {name: median(each) for name, each in durations.items() if each},
            _filled(spec, steps),
        )

    def machine(self) -> Machine:
        """The rates that the run achieved. Raises InvalidJob if its models are missing."""
        return rates(self._work(Batch.of(self.spec, self.filled)), self.seconds)

    def check_comparable(self, spec: Spec, file_sizes: FileSizes) -> None:
        """Raises InvalidJob, with the fields that differ, if the run's steps are other work than those of `spec`, whose
        models have the sizes `file_sizes`; and if the run's models are missing."""
        batch, own = Batch.of(spec), Batch.of(self.spec)
        here, there = (spec.algorithm, batch, Work.of(spec, file_sizes, batch)), (self.spec.algorithm, own)
        if here == (*there, self._work(own)):
            return
        differ = [*_differences(_decide(self.spec), _decide(spec), "spec")] or ["its models have other sizes"]
        rest = [f"{len(differ) - _NAMED} more fields differ"] if len(differ) > _NAMED else []
        message = "is a run of another job, to which the prediction cannot be compared; give the run's own manifest: "
        raise InvalidJob([Problem(str(self.folder), message + "; ".join([*differ[:_NAMED], *rest]))])

    def _work(self, batch: Batch) -> Work:
        try:
            return Work.of(self.spec, model_sizes(self.spec), batch)
        except InvalidJob as error:
            raise InvalidJob(
                [Problem(str(self.folder), f"its job: {each}") for each in error.problems]
            ) from None


def _steps(file: Path) -> list[Mapping[str, float]]:
    """The lines of a run's metrics, by their present names; the last one may be torn, of a run that goes on or was
    killed."""
    lines = file.read_text().splitlines(keepends=True)
    return [with_present_names(strict_json.figures(line)) for line in lines if line.endswith("\n")]


def _filled(spec: Spec, steps: list[Mapping[str, float]]) -> float:
    whole = Batch.of(spec)
    if spec.graph.generates:  # the prompts' lengths are not measured
        # The models read the replies of an environment too.
        lengths = (step["response_length_mean"] + step.get("context_tokens_mean", 0.0) for step in steps)
        missing = whole.longest - fmean(lengths)
        return 1 - missing / whole.tokens
    return fmean(step["tokens"] for step in steps) / whole.count / whole.tokens


def _decide(spec: Spec) -> dict[str, Any]:
    """The fields that decide what work a step is."""
    whole = spec.model_dump(mode="json", by_alias=True)
    return {name: whole[name] for name in (*_DECIDE, algorithm_of(spec).section) if name in whole}


def _differences(there: Any, here: Any, where: str) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in there | here:
            yield from _differences(there.get(key), here.get(key), f"{where}.{key}")
    elif there != here:
        yield f"{where} is {show(there)} there and {show(here)} here"

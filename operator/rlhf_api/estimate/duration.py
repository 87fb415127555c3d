"""Predicts the seconds of a training step from its work and a machine's rates; pure.

Work is counted as in docs/reference/duration.md: matrix operations by parameters, without attention's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from ..contract.teachers import views_of
from ..errors.problem import InvalidJob, Problem
from ..field_types import ModelField
from ..graph import POLICY, Dataset, Generate, Graph, Infer, Score, Train, minibatch_count
from ..roles import Role
from ..spec import Spec
from .serving import data_parallel
from .sizes import FileSizes, Size, Sizes, frozen_part
from .zero import BYTES

PHASES = ("generate", "score", "train", "broadcast")
"""Phases of a step, in order; `metrics.jsonl` has each as `<phase>_seconds`."""


@dataclass(frozen=True)
class Machine:
    """Achieved rates, not those of data sheets; None if unknown.

    `flops`: floating-point operations per second of one GPU, or of one process on a CPU. `memory`: bytes per second at
    which generation reads weights. `link`: bytes per second of a broadcast.
    """

    flops: float | None = None
    memory: float | None = None
    link: float | None = None


@dataclass(frozen=True)
class Batch:
    """Sequences of one step: `count`, with `tokens` each on average; `longest`: tokens of the longest response."""

    count: int
    tokens: float
    longest: int

    @classmethod
    def of(cls, spec: Spec, filled: float = 1.0) -> "Batch":
        """`filled`: average length of sequences, as a share of the maximum."""
        data, source = spec.data, spec.graph.source
        if isinstance(source, Dataset):
            longest, each = data.max_response_length, source.group
        else:
            longest, each = spec.longest_response, spec.sampling.responses_per_prompt
        return cls(data.prompts_per_step * each, filled * (data.max_prompt_length + longest), longest)

    def sampled(self, spec: Spec) -> float:
        """The responses that the policy samples: without those that the rows give."""
        source = spec.graph.source
        return self.count * (1 - source.given) if isinstance(source, Generate) else 0.0

    def trained(self, spec: Spec) -> "Batch":
        """The sequences that the step trains on: with those that a built-in sampler draws again; what a sampler of
        one's own returns is unknown."""
        replay = spec.replay
        if not replay.window or replay.sampler_is_import:
            return self
        return replace(self, count=self.count + (replay.samples_per_step or self.count))

    def share(self, spec: Spec, node: Train) -> float:
        """The share of the sequences that a node trains on: of a pair for each prompt two, all others whole."""
        return min(1.0, 2 / spec.sampling.responses_per_prompt) if node.pairs else 1.0

    def updates(self, node: Train) -> int:
        """Updates of a node in one pass over the sequences."""
        return minibatch_count(self.count, node.minibatch_size or self.count)

    def text(self, spec: Spec, node: Train) -> float:
        """Tokens of the pretraining rows in each update of a node, filled as the sequences are."""
        if spec.pretraining is None or node.model != POLICY:
            return 0.0
        data = spec.data
        filled = self.tokens / (data.max_prompt_length + self.longest)
        return spec.pretraining.rows_per_update * filled * (data.max_prompt_length + data.max_response_length)


@dataclass(frozen=True)
class Work:
    """Work of one step, for the process that has the most of each phase. Operations: `generating`, `score`, `train`.
    Bytes: `generate`, weights read once for every token of the longest responses, and `broadcast`, where whole weights
    are sent, without frozen parts: those of an adapter are not counted."""

    generate: float
    generating: float
    score: float
    train: float
    broadcast: float

    @classmethod
    def of(cls, spec: Spec, file_sizes: FileSizes, batch: Batch) -> "Work":
        """Raises InvalidJob if the size of a model is unknown."""
        sizes, graph = _Sizes(Sizes.of(spec, file_sizes)), spec.graph
        generate, generating = _generation(spec, sizes, batch) if graph.generates else (0.0, 0.0)
        ranks = spec.trainer.ranks
        tokens, trained = batch.count * batch.tokens, batch.trained(spec)
        sent = graph.generates and not (spec.generator.shared_with_trainer or spec.model.adapter("policy"))
        return cls(
            generate=generate,
            generating=generating,
            score=_scoring(spec, sizes, graph, ranks) * tokens,
            train=sum(
                _update(spec, sizes, node)
                * (
                    batch.share(spec, node) * trained.count * batch.tokens
                    + trained.updates(node) * batch.text(spec, node)
                )
                for node in graph.train
            )
            / ranks,
            broadcast=_sent(spec, sizes) * BYTES[spec.trained_dtype("policy")] if sent else 0.0,
        )


def predicted(work: Work, machine: Machine) -> dict[str, float | None]:
    """Seconds of each phase of the job; None if its rate is unknown."""
    read, computed = _over(work.generate, machine.memory), _over(work.generating, machine.flops)
    durations = {
        "generate": None if read is None or computed is None else max(read, computed),
        "score": _over(work.score, machine.flops),
        "train": _over(work.train, machine.flops),
        "broadcast": _over(work.broadcast, machine.link),
    }
    return {phase: seconds for phase, seconds in durations.items() if getattr(work, phase)}


def of_step(spec: Spec, seconds: Mapping[str, float | None]) -> float | None:
    """Mean seconds of a step with these phases: sequential, or generation concurrent with the others if it runs ahead
    or responses are trained on as they arrive. None if a phase's seconds are unknown."""
    known = {phase: duration for phase, duration in seconds.items() if duration is not None}
    if len(known) < len(seconds):
        return None
    if "broadcast" in known:
        known["broadcast"] /= spec.weights.every_steps
    generate = known.pop("generate", 0.0)
    beside = spec.rollout.max_staleness > 0 or spec.replay.dynamic
    return max(generate, sum(known.values())) if beside else generate + sum(known.values())


def rates(work: Work, seconds: Mapping[str, float]) -> Machine:
    """The rates at which a run did this work in the given seconds of each phase."""
    return Machine(
        flops=_over(work.train, seconds.get("train")),
        memory=_over(work.generate, seconds.get("generate")),
        link=_over(work.broadcast, seconds.get("broadcast")),
    )


class _Sizes:
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def of(self, field: ModelField) -> float:
        """Parameters of a model."""
        return float(self.size(field).parameters)

    def passed(self, field: ModelField) -> float:
        """Parameters that each token passes, of which operations are counted."""
        return float(self.size(field).passed)

    def size(self, field: ModelField) -> Size:
        """Raises InvalidJob where it is not known."""
        role = next((role for role in self._sizes.frozen if role.row.model == field), None)
        size: Size | None = (
            self._sizes.frozen[role] if role is not None else getattr(self._sizes, field, None)
        )
        if size is None:
            message = (
                f"the size of the {field} is not known; set it, such as 7.6e9, or have the model's files here"
            )
            raise InvalidJob([Problem("spec.model.parameters", message)])
        return size

    def scores(self) -> bool:
        """True if the reward role holds a model; functions are not predicted."""
        return Role.REWARD in self._sizes.frozen


def _over(work: float, rate: float | None) -> float | None:
    return work / rate if work and rate else None


def _generation(spec: Spec, sizes: _Sizes, batch: Batch) -> tuple[float, float]:
    """Bytes read by a server, and operations per GPU."""
    section, trainer = spec.generator, spec.trainer
    if section.shared_with_trainer:
        servers, gpus = trainer.ranks, 1
        at_once = max(1, trainer.micro_batch_tokens // (spec.data.max_prompt_length + batch.longest))
    else:
        gpus, copies = section.tensor_parallel_size, data_parallel(section)
        servers, at_once = section.replicas * copies, ceil(section.concurrent_requests / copies)
    requests, parameters = ceil(batch.sampled(spec) / servers), sizes.of("policy")
    dtype = (trainer if section.shared_with_trainer else section).dtype or spec.model.dtype
    read = ceil(requests / at_once) * batch.longest * parameters * BYTES[dtype] / gpus
    return read, 2 * sizes.passed("policy") * requests * batch.tokens / gpus


def _scoring(spec: Spec, sizes: _Sizes, graph: Graph, ranks: int) -> float:
    """Operations per token: of the trainer's own inference, or of the busiest role."""
    each: dict[Role, float] = {Role.TRAINER: 0.0}
    for node in graph.prepare:
        role = graph.remote(node)
        if isinstance(node, Score) and sizes.scores():
            each[Role.REWARD] = 2 * sizes.passed("reward") / _gpus(spec, Role.REWARD)
        elif isinstance(node, Infer) and role is not None:
            each[role] = each.get(role, 0.0) + 2 * sizes.passed(node.model.field) / _gpus(spec, role)
        elif isinstance(node, Infer):
            each[Role.TRAINER] += 2 * sizes.passed(node.model.field) / ranks
    return max(each.values())


def _sent(spec: Spec, sizes: _Sizes) -> float:
    """Parameters of the policy that each version brings, which are not frozen as far as is known."""
    return sizes.of("policy") - frozen_part(spec, sizes.size("policy"))


def _gpus(spec: Spec, role: Role) -> int:
    """Number of GPUs of all servers of a frozen model."""
    sections = [view.model_server(role) for view in views_of(spec, role)]
    return sum(section.replicas * section.tensor_parallel_size for section in sections)


def _update(spec: Spec, sizes: _Sizes, node: Train) -> float:
    """Operations of all ranks per token: 2 per parameter forward, 2 for the gradient of activations, 2 for that of
    weights (none for an adapter's base); 2 more if all layers are recomputed, 1 if
    every second one."""
    field = node.model.field
    operations = 6 if spec.model.adapter(field) is None else 4
    operations += {"none": 0, "selective": 1, "full": 2}[spec.trainer.gradient_checkpointing]
    return node.epochs * operations * sizes.passed(field)

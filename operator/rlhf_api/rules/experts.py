"""Rules of `spec.experts`."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..graph import POLICY, Infer
from ..sections.roles import option_of
from ..spec import Spec

_PIPELINE = "pipeline-parallel-size"


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a replay of choices in a job that has none to replay, or loses them on the way."""
    if spec.experts.replay == "policy":
        yield from _refused(spec, "what the routers chose", _without_choices(spec))
    elif spec.experts.replay == "rollout":
        yield from _refused(spec, "what vLLM's routers chose", _without_engine(spec))
        yield from _engine_arguments(spec)


def _refused(spec: Spec, what: str, reasons: dict[str, bool]) -> Iterator[Problem]:
    for reason, is_so in reasons.items():
        if is_so:
            message = f"replays {what}, and {reason}; use none; got {spec.experts.replay!r}"
            yield Problem("spec.experts.replay", message)


def _without_choices(spec: Spec) -> dict[str, bool]:
    nodes = (node for node in spec.graph.prepare if isinstance(node, Infer) and node.model == POLICY)
    return {
        "the job has no pass of the policy before its updates, such as grpo has with several of them": not any(
            node.writes == ("logprobs",) for node in nodes
        ),
        "responses of earlier steps have none (spec.replay.maxReplayEpisode)": bool(spec.replay.window),
        "responses that come during training have none (spec.replay.streamDataLoaderType)": spec.replay.dynamic,
        "ranks that share sequences have none (spec.trainer.sequenceParallelSize)": (
            spec.trainer.sequence_parallel_size > 1
        ),
    }


def _without_engine(spec: Spec) -> dict[str, bool]:
    shared = spec.generator.shared_with_trainer
    return {
        "no generator samples the responses of this algorithm": not spec.graph.generates,
        "the trainer samples by its own routers (spec.generator.sharedWithTrainer)": (
            spec.graph.generates and shared
        ),
    }


def _engine_arguments(spec: Spec) -> Iterator[Problem]:
    """Options with which vLLM 0.32 returns no experts."""
    for key, value in spec.generator.engine_arguments.items():
        name, where = option_of(key), f"spec.generator.engineArguments.{key}"
        if name == "enable-prefix-caching" and value is key.startswith("no-"):
            message = (
                "vLLM returns what routers chose from its prefix cache alone (spec.experts.replay: rollout)"
            )
            yield Problem(where, f"{message}; remove it; got {value}")
        if name == _PIPELINE and value != 1:
            message = "vLLM returns no experts from pipelines (spec.experts.replay: rollout)"
            yield Problem(where, f"{message}; use spec.generator.tensorParallelSize; got {value}")

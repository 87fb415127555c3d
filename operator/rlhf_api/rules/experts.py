"""Rules of `spec.experts`."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..graph import POLICY, Infer
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a replay of the routers' choices in a job that has none to replay, or loses them on the way."""
    if spec.experts.replay == "none":
        return
    nodes = (node for node in spec.graph.prepare if isinstance(node, Infer) and node.model == POLICY)
    reasons = {
        "the job has no pass of the policy before its updates, such as grpo has with several of them": not any(
            node.writes == ("logprobs",) for node in nodes
        ),
        "responses of earlier steps have none (spec.replay.maxReplayEpisode)": bool(spec.replay.window),
        "responses that come during training have none (spec.replay.streamDataLoaderType)": spec.replay.dynamic,
        "ranks that share sequences have none (spec.trainer.sequenceParallelSize)": (
            spec.trainer.sequence_parallel_size > 1
        ),
    }
    for reason, is_so in reasons.items():
        if is_so:
            yield Problem(
                "spec.experts.replay", f"replays what the routers chose, and {reason}; use none; got 'policy'"
            )

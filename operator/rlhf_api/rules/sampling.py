"""Rules of `spec.sampling`."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..sections.sampling import MOST_KEPT
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of what is left out of the distribution that tokens are sampled from, and of lengths."""
    s = spec.sampling
    compared = spec.replay.dynamic or spec.weights.every_steps > 1 or spec.rollout.max_staleness
    if s.cut and spec.graph.generates and (compared or spec.rollout.level != "none"):
        yield Problem(
            "spec.sampling",
            f"topP, minP, minNewTokens, structuredOutputs and a topK above {MOST_KEPT} mask tokens in the sampler "
            "alone, and replay.streamDataLoaderType dynamic, weights.everySteps above 1, rollout.maxStaleness and "
            "rollout.importance compare its log-probabilities with the trainer's; set topK too, from 1 to "
            f"{MOST_KEPT}, so that the trainer applies the same mask, or use none of them; got topP {s.top_p:g}, "
            f"minP {s.min_p:g}, topK {s.top_k}, minNewTokens {s.min_new_tokens}",
        )
    if s.min_new_tokens > s.max_new_tokens:
        yield Problem(
            "spec.sampling.minNewTokens",
            f"must not exceed maxNewTokens ({s.max_new_tokens}); got {s.min_new_tokens}",
        )
    if s.structured_outputs is not None and spec.graph.generates:
        yield from _structured(spec)


def _structured(spec: Spec) -> Iterator[Problem]:
    """Problems of what else would end a response, and of a sampler that knows no structured outputs."""
    s, where = spec.sampling, "spec.sampling.structuredOutputs"
    if spec.generator.shared_with_trainer:
        message = "are vLLM's, and with spec.generator.sharedWithTrainer the trainer samples; use generators"
        yield Problem(where, f"{message}, or remove this")
    if s.min_new_tokens:
        message = "would ban the end token where structuredOutputs allow no other; use 0, or say the least length there"
        yield Problem("spec.sampling.minNewTokens", f"{message}; got {s.min_new_tokens}")
    if s.stop:
        message = (
            "would end responses before structuredOutputs do; remove it, or have the constraint end there"
        )
        yield Problem("spec.sampling.stop", f"{message}; got {show(list(s.stop))}")

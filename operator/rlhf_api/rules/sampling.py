"""Rules of `spec.sampling`."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..sections.sampling import MOST_KEPT, Thinking
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
    if s.thinking is not None and spec.graph.generates:
        yield from _thinking(spec, s.thinking)


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


def _thinking(spec: Spec, thinking: Thinking) -> Iterator[Problem]:
    """Problems of the budget's own fields, and of what it does not go with."""
    where, most = "spec.sampling.thinking", spec.sampling.max_new_tokens
    if thinking.budget >= most:
        message = f"must be below sampling.maxNewTokens ({most}), which counts the thought and the answer"
        yield Problem(f"{where}.budget", f"{message}; got {thinking.budget}")
    if thinking.end not in thinking.closing_text:
        message = f"must have {show(thinking.end)} in it, which ends the thought"
        yield Problem(f"{where}.closing", f"{message}; got {show(thinking.closing)}")
    section, evaluation = spec.reward, spec.evaluation
    others = {
        "spec.generator.sharedWithTrainer": spec.generator.shared_with_trainer,
        "spec.environment": spec.environment is not None,
        "spec.sampling.structuredOutputs": spec.sampling.structured_outputs is not None,
        "spec.reward.fineGrained": section.fine_grained,
        "spec.reward.stepScores": section.step_scores is not None,
        "spec.evaluation.presencePenalty": evaluation is not None and evaluation.presence_penalty != 0,
        "spec.evaluation.frequencyPenalty": evaluation is not None and evaluation.frequency_penalty != 0,
    }
    for other in (name for name, is_there in others.items() if is_there):
        yield Problem(where, f"is not supported with {other}; remove one of them")

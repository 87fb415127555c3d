"""Episodes of several turns for against_trl_vllm.py: the environment replies with the same words after each turn."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Talk:
    """`spec.environment.path` of our side. The score is `spec.reward`'s."""

    def __init__(self, *, turns: int, reply: int) -> None:
        self._turns, self._reply, self._left = turns, words(reply), turns

    def reset(self, row: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._left = self._turns

    def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:  # noqa: ARG002
        self._left -= 1
        return self._reply, 0.0, not self._left


def words(count: int) -> str:
    """The text of `count` tokens of iteration.py's models."""
    return "".join(f" <{40 + i % 60}>" for i in range(count))


def trl_rollout(turns: int, reply: int, longest: int) -> Callable[[Sequence[str], Any], dict[str, Any]]:
    """TRL's `rollout_func`: each turn of all episodes, of at most `longest` tokens, is one call of vLLM."""

    def rollout(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        tokenizer, engine = trainer.processing_class, trainer.vllm_generation
        engine.max_completion_length = longest
        prompt_ids = tokenizer(list(prompts))["input_ids"]
        reply_ids = tokenizer(words(reply))["input_ids"]
        completions, logprobs, mask = ([list[Any]() for _ in prompts] for _ in range(3))
        for turn in range(turns):
            so_far = [
                [*prompt, *completion] for prompt, completion in zip(prompt_ids, completions, strict=True)
            ]
            _, sampled, of_sampled, _ = engine.generate(so_far, None, trainer.num_generations)
            last = turn == turns - 1
            for i, (tokens, those) in enumerate(zip(sampled, of_sampled, strict=True)):
                after = [] if last else reply_ids
                completions[i] += [*tokens, *after]
                logprobs[i] += [*(one[0] for one in those), *[0.0] * len(after)]
                mask[i] += [*[1] * len(tokens), *[0] * len(after)]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": logprobs,
            "env_mask": mask,
        }

    return rollout

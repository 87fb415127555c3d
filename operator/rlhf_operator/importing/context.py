"""Sizes of batches of other systems, where they are products or quotients of several settings; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from rlhf_api.errors.similar import plain

from .settings import System


class NotCarried(Exception):
    """A value that no value of ours is like; the text says why, or what to do."""


@dataclass(frozen=True)
class Context:
    """All settings of the configuration, by their last keys as `plain` has them."""

    system: System
    algorithm: str
    given: Mapping[str, Any]

    def number(self, name: str, default: float) -> float:
        """The number of a setting, or the other system's default."""
        value = self.given.get(plain(name))
        return value if isinstance(value, int | float) and not isinstance(value, bool) else default

    @property
    def samples(self) -> bool:
        """True if responses are sampled."""
        return self.algorithm not in ("sft", "dpo", "kto", "reward", "process_reward")

    @property
    def group(self) -> float:
        """Responses to a prompt."""
        if not self.samples or (self.algorithm == "ppo" and self.system == "TRL"):
            return 1
        if self.pairs:
            return 2
        names = {"TRL": ("num_generations", 8), "verl": ("n", 1), "OpenRLHF": ("n_samples_per_prompt", 1)}
        if self.system == "prime-rl":
            return self.number("rollouts_per_example", self.number("group_size", 1))
        return self.number(*names[self.system])

    @property
    def pairs(self) -> bool:
        """True if a batch counts prompts, each with a pair of responses."""
        return self.algorithm == "online_dpo" and self.system == "TRL"

    @property
    def responses(self) -> float:
        """Responses, or rows, of a step of TRL, on one device, or of prime-rl."""
        if self.system == "prime-rl":
            return self.number("batch_size", 0)
        if self.pairs:
            return self.update
        device = self.number("per_device_train_batch_size", 8)
        accumulated = self.number("gradient_accumulation_steps", 1)
        if self.algorithm == "ppo":
            return device * accumulated * self.number("num_mini_batches", 1)
        if self.group > 1:
            accumulated = self.number("steps_per_generation", accumulated)
        return self.number("generation_batch_size", device * accumulated)

    @property
    def update(self) -> float:
        """Responses, or rows, of an update of these."""
        if self.system == "prime-rl":
            return self.responses
        rows = self.number("per_device_train_batch_size", 8) * self.number("gradient_accumulation_steps", 1)
        return self.group * rows if self.pairs else rows


def batch_sizes(context: Context) -> dict[str, dict[str, Any]]:
    """The sizes that are products or quotients of theirs, of TRL on one device, by the names of the factors as `plain`
    has them: the fields stand with the first one that is given. None of systems that give each size itself."""
    factors = {
        "TRL": (
            *("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size"),
            *("steps_per_generation", "num_mini_batches"),
        ),
        "prime-rl": ("batch_size",),
    }
    names = map(plain, factors.get(context.system, ()))
    given = [name for name in names if isinstance(context.given.get(name), int)]
    if not given:
        return {}
    try:
        sizes = {
            "spec.data.promptsPerStep": whole(context.responses / context.group, "the number of prompts")
        }
        if context.samples:
            sizes[f"spec.{to_camel(context.algorithm)}.minibatchSize"] = whole(context.update, "a minibatch")
        if context.pairs:
            sizes["spec.sampling.responsesPerPrompt"] = 2
    except (NotCarried, ArithmeticError, ValueError):
        return {}
    first, *others = given
    return {first: sizes, **{name: {} for name in others}}


def whole(number: float, of: str) -> int:
    """The number as an integer, 1 or more. Raises NotCarried."""
    if number < 1 or number != int(number):
        raise NotCarried(f"{of} is {number:g}, not a whole number")
    return int(number)

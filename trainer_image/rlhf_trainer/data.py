"""From the rows of a dataset to tokens, and the order in which a run sees them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlhf_api.problems import InvalidJob, Problem, show
from rlhf_api.rows import PromptRow, Row
from rlhf_api.spec import Sampling

from .records import Prompt


@dataclass
class RowStream:
    """Rows without end: every row once in each epoch, in an order that depends on seed and epoch alone.

    Its state is the position, so a resumed run sees exactly the rows that an undisturbed one would have.
    """

    count: int
    seed: int
    position: int = 0

    def take(self, n: int) -> list[tuple[int, int]]:
        """The next n rows as (epoch, row)."""
        places = [divmod(position, self.count) for position in range(self.position, self.position + n)]
        self.position += n
        return [(epoch, epoch_order(self.count, self.seed, epoch)[place]) for epoch, place in places]


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The rows 0 ... count - 1 as an epoch sees them."""
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int) -> tuple[int, ...]:
    """A prompt's last `max_length` token ids. Raises InvalidJob where it has none: nothing could follow it."""
    tokens = tokenizer(text)["input_ids"]
    if not tokens:
        raise InvalidJob([Problem("spec.data", f"the tokenizer makes no tokens of the prompt {show(text)}")])
    return tuple(tokens[-max_length:])


def encode_response(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int) -> tuple[int, ...]:
    """An answer's token ids with the end token, cut to `max_length` (a cut answer has no end token)."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tuple([*tokens, tokenizer.eos_token_id][:max_length])


def end_tokens(
    tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None, sampling: Sampling
) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's own first, then those of the policy's generation_config.json,
    where chat models name the end of a turn (`eos_token_id` there is a number or a list), then the manifest's.

    Raises InvalidJob where the manifest names a token that the tokenizer has not.
    """
    own = sampling.answer_end_id
    if own is not None and own >= len(tokenizer):
        message = f"must be a token of the tokenizer, which has {len(tokenizer)}; got {own}"
        raise InvalidJob([Problem("spec.sampling.answerEndId", message)])
    named = generation.eos_token_id if generation is not None else None
    several = named if isinstance(named, list) else [] if named is None else [named]
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *several, *(() if own is None else (own,))]))


def prompts(
    rows: Sequence[Row],
    places: Sequence[tuple[int, int]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> list[Prompt]:
    """The prompts of `places` ((epoch, row) each) in `rows`, which are checked prompt rows."""
    found = [(f"{epoch}/{row}", cast(PromptRow, rows[row])) for epoch, row in places]
    return [
        Prompt(prompt_id, encode_prompt(tokenizer, row.prompt, max_length), row.model_dump())
        for prompt_id, row in found
    ]

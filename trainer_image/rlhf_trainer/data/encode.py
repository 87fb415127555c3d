"""Tokenization of dataset rows."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlhf_api.dataset.messages import Message, Text
from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.sections.sampling import Sampling

from ..tensors.images import Picture
from .chat import NO_ARGUMENTS, Segment, end_of_turn, render, segments, special_tokens, without_oldest

TokensOf = Callable[[str], list[int]]
"""Tokens of a rendered conversation."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of a prompt and its response, at least one each. `mask`: response tokens that are trained on.
    `prompt_cut`, `response_cut`: number of tokens cut to fit; `pictures`: the prompt's images; `step_labels`:
    of response tokens, see `steps.step_labels`."""

    prompt: tuple[int, ...]
    response: tuple[int, ...] = ()
    mask: tuple[bool, ...] = ()
    prompt_cut: int = 0
    response_cut: int = 0
    pictures: tuple[Picture, ...] = ()
    step_labels: tuple[float, ...] = ()


class TooLong(InvalidJob):
    """A conversation that no cut between turns makes short enough; `length` in tokens."""

    def __init__(self, length: int, limit: int) -> None:
        message = (
            f"the last turn of a conversation alone makes a longer prompt, of {length} tokens; got {limit}"
        )
        super().__init__([Problem("spec.data.maxPromptLength", message)])
        self.length = length


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    max_length: int,
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    tokens_of: TokensOf | None = None,
) -> Encoded:
    """A prompt of at most `max_length` tokens. Of text that is longer, the last ones and a BOS token at its start stay.

    A conversation is rendered up to the assistant's next turn; `tokens_of` may tokenize that. If it is too long, the
    oldest questions and answers are dropped; the system prompt stays. Raises InvalidJob for a prompt without tokens,
    TooLong if its last question alone is too long.
    """
    return _prompt(tokenizer, prompt, max_length, arguments, tokens_of)[1]


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    response: Text,
    max_prompt: int,
    max_response: int,
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    tokens_of: TokensOf | None = None,
) -> Encoded:
    """A prompt with a given response, tokenized as one text, each cut to its limit in tokens; `tokens_of`: see
    `encode_prompt`.

    A response ends with the end token, or as the chat template ends a turn; a response that was cut has no end token.
    If the response is a conversation, only the assistant's turns are trained on, each with its end token; a prompt of
    text is the user's turn before it. One that is too long keeps the assistant's turns that fit, if the first one does.
    """
    if not isinstance(response, str):
        prompt = turns(prompt, "user")
    shortened, encoded = _prompt(tokenizer, prompt, max_prompt, arguments, tokens_of)
    if isinstance(shortened, str):
        before, following = shortened, [Segment(str(response), trained=True)]
    else:
        before = render(tokenizer, shortened, arguments, for_response=True)
        following = segments(tokenizer, shortened, turns(response, "assistant"), arguments)
    tokens, mask, ends = list[int](), list[bool](), list[int]()
    for i, segment in enumerate(following):
        ids, trained = _segment(tokenizer, before, segment, last=i == len(following) - 1)
        tokens, mask, before = tokens + ids, mask + trained, segment.text
        if segment.trained:
            ends.append(len(tokens) - next((i for i, mark in enumerate(reversed(trained)) if mark), 0))
    kept_length = max((end for end in ends if end <= max_response), default=max_response)
    return Encoded(
        encoded.prompt,
        tuple(tokens[:kept_length]),
        tuple(mask[:kept_length]),
        encoded.prompt_cut,
        max(0, len(tokens) - kept_length),
    )


def encode_sampled(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    response: str,
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    ended: bool,
) -> list[int]:
    """Prompt and a sampled response in another tokenizer, such as a reward model's, by its own chat template for
    conversations. A response that was cut off gets no end token."""
    encoded = encode(tokenizer, prompt, response, sys.maxsize, sys.maxsize, arguments)
    return [*encoded.prompt, *(encoded.response if ended else encoded.response[:-1])]


def continuation(tokenizer: PreTrainedTokenizerBase, before: str, text: str) -> list[int]:
    """Tokens of `text` as a continuation of `before`, whose own tokens do not change.

    Tokenized alone, `text` may get other tokens: SentencePiece prepends a space. Where the last characters of `before`
    would merge with the first of `text`, a line break is used as context instead.
    """
    for context in (before, "\n", "a"):
        known, both = _ids(tokenizer, context), _ids(tokenizer, context + text)
        if both[: len(known)] == known:
            return both[len(known) :]
    return _ids(tokenizer, text)


def end_tokens(
    tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None, sampling: Sampling
) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's own first, then those of the policy's generation_config.json,
    where chat models name the end of a turn (`eos_token_id` there is a number or a list), the one by which the chat
    template ends a turn, and the manifest's.

    Raises InvalidJob for a token of the manifest that the tokenizer lacks.
    """
    own = sampling.response_end_id
    if own is not None and own >= len(tokenizer):
        message = f"must be a token of the tokenizer, which has {len(tokenizer)}; got {own}"
        raise InvalidJob([Problem("spec.sampling.responseEndId", message)])
    named = generation.eos_token_id if generation is not None else None
    several = named if isinstance(named, list) else [named]
    candidates = [tokenizer.eos_token_id, *several, end_of_turn(tokenizer), own]
    return tuple(dict.fromkeys(token for token in candidates if token is not None))


def _prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    max_length: int,
    arguments: Mapping[str, Any],
    tokens_of: TokensOf | None = None,
) -> tuple[Text, Encoded]:
    """The rendered part of the prompt, and its tokens."""
    shortened = prompt
    tokens = _prompt_ids(tokenizer, shortened, arguments, tokens_of)
    whole = len(tokens)
    while (
        len(tokens) > max_length and not isinstance(shortened, str) and (shorter := without_oldest(shortened))
    ):
        shortened = shorter
        tokens = _prompt_ids(tokenizer, shortened, arguments, tokens_of)
    if not tokens:
        raise InvalidJob(
            [Problem("spec.data", f"the tokenizer makes no tokens of the prompt {show(prompt)}")]
        )
    if len(tokens) > max_length:
        if not isinstance(shortened, str):
            raise TooLong(whole, max_length)
        begins = tokens[:1] if tokens[0] == tokenizer.bos_token_id and max_length > 1 else []
        tokens = [*begins, *tokens[len(begins) - max_length :]]
    return shortened, Encoded(tuple(tokens), prompt_cut=whole - len(tokens))


def _prompt_ids(
    tokenizer: PreTrainedTokenizerBase, prompt: Text, arguments: Mapping[str, Any], tokens_of: TokensOf | None
) -> list[int]:
    """Tokens of a prompt, with one BOS token where the tokenizer or the text begins with it."""
    if not isinstance(prompt, str):
        rendered = render(tokenizer, prompt, arguments, for_response=True)
        return _ids(tokenizer, rendered) if tokens_of is None else tokens_of(rendered)
    tokens, begin, end = list(tokenizer(prompt)["input_ids"]), tokenizer.bos_token_id, tokenizer.eos_token
    while begin is not None and tokens[:2] == [begin, begin]:  # the text has what the tokenizer adds
        del tokens[0]
    tokens = _with_one_end(tokens, tokenizer.eos_token_id)
    # Some tokenizers end each text (`add_eos_token`); the response is to follow.
    added = end is not None and tokens[-1:] == [tokenizer.eos_token_id] and not prompt.endswith(end)
    return tokens[:-1] if added else tokens


def _with_one_end(tokens: list[int], end: int | None) -> list[int]:
    """The tokens without repetitions of the end token at their end: a text may have what is added to it."""
    while end is not None and tokens[-2:] == [end, end]:
        tokens = tokens[:-1]
    return tokens


def _segment(
    tokenizer: PreTrainedTokenizerBase, before: str, segment: Segment, *, last: bool
) -> tuple[list[int], list[bool]]:
    """Tokens of a segment and their mask: assistant tokens up to the token that ends the turn are trained on, once if
    the text has it too. The last segment ends with that token, or with the EOS token if the template has none."""
    tokens = continuation(tokenizer, before, segment.text)
    if not segment.trained:
        return tokens, [False] * len(tokens)
    ending = _ids(tokenizer, segment.ending)
    special = special_tokens(tokenizer) if ending else ()
    end = next((i for i, token in enumerate(ending) if token in special), None)
    behind = 0 if end is None else len(ending) - end - 1
    written, after = tokens[: len(tokens) - behind], tokens[len(tokens) - behind :]
    if last and end is None:
        written = [*written, tokenizer.eos_token_id]
    written = _with_one_end(written, tokenizer.eos_token_id if end is None else ending[end])
    if last:
        after = []
    return [*written, *after], [True] * len(written) + [False] * len(after)


def turns(text: Text, role: str) -> list[Message]:
    """The conversation; plain text becomes one turn of this role."""
    return [Message(role=role, content=text)] if isinstance(text, str) else text


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids without BOS and EOS."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])

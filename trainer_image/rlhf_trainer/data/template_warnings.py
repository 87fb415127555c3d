"""Warnings about a chat template with which prompts would not be what the model was trained on."""

from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.messages import Message
from rlhf_api.errors.problem import InvalidJob, show

from .chat import ANY, render

SHOWN = 40
"""Characters of a prompt that a warning shows."""


def template_warnings(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """One line for each fault, with what the model would read; none without a template, or where it takes no plain
    question: then the rows say more."""
    try:
        return [*_header(tokenizer), *_begin(tokenizer)] if tokenizer.chat_template else []
    except InvalidJob:
        return []


def _header(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The assistant's turn has a header, which prompts lack as the template does not know `add_generation_prompt`."""
    question = Message(role="user", content="Hello")
    prompt = render(tokenizer, [question], for_response=True)
    answered = render(tokenizer, [question, Message(role="assistant", content=ANY)])
    if prompt != render(tokenizer, [question]) or not answered.startswith(prompt):
        return
    header, _, _ = answered[len(prompt) :].partition(ANY)
    if header.strip():
        yield (
            "the chat template does not begin the assistant's turn (add_generation_prompt): prompts end with "
            f"{show(prompt[-SHOWN:])}, and the model has to write {show(header)} itself"
        )


def _begin(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Texts begin with a BOS token, which conversations lack as the template does not write it."""
    begin = tokenizer.bos_token_id
    if begin is None or tokenizer("a")["input_ids"][:1] != [begin]:
        return
    prompt = render(tokenizer, [Message(role="user", content="Hello")], for_response=True)
    if tokenizer(prompt, add_special_tokens=False)["input_ids"][:1] != [begin]:
        yield (
            f"the tokenizer begins texts with {tokenizer.bos_token}, and the chat template does not (bos_token): "
            f"conversations begin with {show(prompt[:SHOWN])}"
        )

"""Warnings about chat templates, with what the model would read."""

import pytest
from tests.support.tiny.models import chat_tokenizer
from tests.support.tiny.tokenizers_of_all_kinds import CHAT, prefixed_bpe

from rlhf_trainer.data.template_warnings import template_warnings

CHATML_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""As Mistral's: there is no header, so that a prompt ends with the user's turn."""


def test_a_template_without_a_generation_prompt_is_said_with_the_end_of_a_prompt():
    tokenizer = chat_tokenizer()
    assert template_warnings(tokenizer) == []
    tokenizer.chat_template = CHATML_TURNS
    (line,) = template_warnings(tokenizer)
    assert r"prompts end with '<|im_start|>user\nHello<|im_end|>\n'" in line
    assert r"the model has to write '<|im_start|>assistant\n' itself" in line


def test_a_template_without_the_token_that_begins_texts_is_said():
    tokenizer = prefixed_bpe()
    assert template_warnings(tokenizer) == []
    tokenizer.chat_template = CHAT.removeprefix("{{ bos_token }}")
    (line,) = template_warnings(tokenizer)
    assert "the tokenizer begins texts with <s>, and the chat template does not" in line
    assert "conversations begin with '[user]Hello[assistant]'" in line


@pytest.mark.parametrize("template", [INST, CHAT, None, "{{ raise_exception('no') }}"])
def test_other_templates_are_not_warned_of(template):
    tokenizer = prefixed_bpe()
    tokenizer.chat_template = template
    assert template_warnings(tokenizer) == []


def test_a_template_that_adds_an_empty_thought_is_not_warned_of():
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = THINKING
    assert template_warnings(tokenizer) == []

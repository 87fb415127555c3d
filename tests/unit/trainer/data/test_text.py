"""Text of tokens as the continuation of others, with tokenizers of every kind."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny.tokenizers_of_all_kinds import KINDS
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

import rlhf_trainer
from rlhf_trainer.data.encode import encode
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.data.text import context, continued_text, token_texts
from rlhf_trainer.engines.vllm.front.detokenizer import ContinuedText

WORDS = [
    "the film",
    " was",
    " great",
    "\n    ",
    "  ",
    "def f(x):\n",
    " naïve",
    "東京",
    "🜁",
    "\ufffd",
    "x",
    " </s>",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)


def decoded(tokenizer, tokens) -> str:
    """All tokens decoded at once, which defines their text."""
    return tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@st.composite
def tokens_of(draw, kind: str, least: int = 0) -> list[int]:
    """Tokens of a text, and any others between them: special ones, and parts of characters."""
    tokenizer = KINDS[kind]()
    text = tokenizer(draw(TEXTS), add_special_tokens=False)["input_ids"]
    odd = [*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder]
    for byte in (0x0A, 0x20, 0x41, 0xC3, 0xA9, 0xFF):
        odd += [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") or 0]
    any_token = st.one_of(
        st.sampled_from(odd), st.integers(0, len(tokenizer) + 3)
    )  # embeddings may be padded
    for token in draw(st.lists(any_token, max_size=4, min_size=max(0, least - len(text)))):
        text.insert(draw(st.integers(0, len(text))), token)
    return text[draw(st.integers(0, max(0, len(text) - least))) if draw(st.booleans()) else 0 :]


def shared(known: str, both: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(known, both, strict=False)) if a != b), len(known))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_text_of_a_response_follows_its_prompt_in_the_decoding_of_both(kind, data):
    tokenizer = KINDS[kind]()
    prompt, response = data.draw(tokens_of(kind)), data.draw(tokens_of(kind))
    known, both = decoded(tokenizer, prompt), decoded(tokenizer, [*prompt, *response])
    assert continued_text(tokenizer, prompt, response) == both[shared(known, both) :]
    assert "".join(token_texts(tokenizer, prompt, response)) == both[shared(known, both) :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_prompt_and_response_make_the_text_that_was_tokenized(kind, data):
    """Also where the response is cut at any token: what is left is the start of its text."""
    tokenizer = KINDS[kind]()
    prompt, answer = "the film was" + data.draw(TEXTS), data.draw(TEXTS)
    made = encode(tokenizer, prompt, answer, 1000, 1000)
    whole = decoded(tokenizer, [*made.prompt, *made.response])
    pieces = token_texts(tokenizer, made.prompt, made.response)
    if "\ufffd" not in whole:
        assert decoded(tokenizer, made.prompt) + "".join(pieces) == whole
        for end in range(len(pieces)):
            cut = continued_text(tokenizer, made.prompt, made.response[:end])
            assert whole.startswith(decoded(tokenizer, made.prompt) + cut.rstrip("\ufffd"))


@pytest.mark.parametrize("kind", ["sentencepiece", "tekken", "prefixed_bpe", "byte_level"])
def test_code_keeps_the_indentation_of_its_first_line(kind):
    tokenizer = KINDS[kind]()
    prompt, answer = "def f(x):\n", "    y = x * x\n    return y\n"
    made = encode(tokenizer, prompt, answer, 100, 100)
    assert continued_text(tokenizer, made.prompt, made.response) == answer


def test_a_context_is_a_few_tokens_however_long_the_prompt_is():
    tokenizer = KINDS["sentencepiece"]()
    prompt = tokenizer("the film was great " * 500 + "🜁")["input_ids"]
    assert len(context(tokenizer, prompt)) < 10


@pytest.mark.parametrize("kind", ["sentencepiece", "prefixed_bpe", "byte_level", "tekken"])
def test_a_character_that_the_prompt_begins_belongs_to_the_response(kind):
    tokenizer = KINDS[kind]()
    tokens = tokenizer("the film was 🜁 great")["input_ids"]
    inside = next(n for n in range(1, len(tokens)) if decoded(tokenizer, tokens[:n]).endswith("\ufffd"))
    assert continued_text(tokenizer, tokens[:inside], tokens[inside:]) == "🜁 great"


def stopping(detokenizer_class, tokenizer, stops, prompt, response) -> int | None:
    """The number of tokens after which vLLM's detokenizer finds a stop string."""
    params = SimpleNamespace(
        stop=list(stops.strings),
        min_tokens=0,
        include_stop_str_in_output=False,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
    )
    request = SimpleNamespace(sampling_params=params, prompt_token_ids=list(prompt), request_id="0")
    reader = detokenizer_class(tokenizer, request)
    return next(
        (n for n, token in enumerate(response, 1) if reader.update([token], False) is not None),
        None,
    )


def trainer_stopping(stops, prompt, response) -> int | None:
    ends = (n for n in range(1, len(response) + 1) if stops.ending(prompt, response[:n]) is not None)
    return next(ends, None)


STRINGS = [" film", "m was", "e", "\n", "    y", "é", "東京", "🜁", " ", "  ", "x):", "京🜁"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_vllm_stops_at_the_token_at_which_the_trainer_stops(kind, data):
    tokenizer = KINDS[kind]()
    stops = StopStrings(tokenizer, data.draw(st.lists(st.sampled_from(STRINGS), min_size=1, max_size=3)))
    prompt, response = data.draw(tokens_of(kind, 1)), data.draw(tokens_of(kind))
    end = trainer_stopping(stops, prompt, response)
    assert stopping(ContinuedText, tokenizer, stops, prompt, response) == end
    if end is not None:
        text = stops.text(prompt, response[:end])
        assert not any(string in text for string in stops.strings)


def test_a_stop_string_of_a_prompt_that_ends_inside_a_character_ends_no_response():
    """As the prompt of a response that was interrupted there: vLLM's own detokenizer takes the prompt for new text."""
    tokenizer = KINDS["byte_level"]()
    stops, tokens = StopStrings(tokenizer, ["film"]), tokenizer("the film 🜁 was")["input_ids"]
    inside = next(n for n in range(1, len(tokens)) if decoded(tokenizer, tokens[:n]).endswith("\ufffd"))
    prompt, response = tokens[:inside], tokens[inside:]
    assert stopping(FastIncrementalDetokenizer, tokenizer, stops, prompt, response) is not None
    assert stopping(ContinuedText, tokenizer, stops, prompt, response) is None


def test_tokens_are_decoded_in_one_place():
    """Everything else asks for the text after a prompt: what is decoded alone may lose its first space."""
    sources = Path(rlhf_trainer.__file__).parent.rglob("*.py")
    calls = r"tokenizer\.(batch_)?decode\(|convert_tokens_to_string|DecodeStream\("
    files = {file.name for file in sources if re.search(calls, file.read_text())}
    assert files == {"text.py", "detokenizer.py"}

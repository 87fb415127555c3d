"""Conversations as tokens: what the template makes of them, and which tokens are trained on."""

import pytest
import torch
from tests.support.tiny.models import CHATML, byte_tokenizer, chat_tokenizer
from tests.support.tiny.tokenizers_of_all_kinds import prefixed_bpe
from tests.unit.api.manifests import job
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from rlhf_api.dataset.chat_template import given_template
from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.messages import Message
from rlhf_api.dataset.rows import Row, with_system_prompt
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import Frozen
from rlhf_api.sections.data import Data
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.chat import check_template
from rlhf_trainer.data.encode import (
    Encoded,
    TooLong,
    continuation,
    encode,
    encode_prompt,
    encode_sampled,
    end_tokens,
)
from rlhf_trainer.ops import LOSSES, OpContext
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.ops.pretraining import mixed
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

TOKENIZER = chat_tokenizer()
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
TURNS = ["user: Hi", "assistant: Hello", "user: More?", "assistant: No"]


def messages(*turns: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in (turn.split(": ") for turn in turns)]


def row(**fields: object) -> Row:
    return checked_row(fields, "responses", lambda: "row")


def encoded(made: Row, max_prompt: int = 999, max_response: int = 999) -> Encoded:
    return encode(TOKENIZER, made.prompt, made.answer, max_prompt, max_response)  # type: ignore[attr-defined]


def trained(encoding: Encoded) -> str:
    """The tokens that are trained on; a dot for each run of others."""
    parts = [
        TOKENIZER.decode([t]) if m else "." for t, m in zip(encoding.response, encoding.mask, strict=True)
    ]
    joined = "".join(parts)
    while ".." in joined:
        joined = joined.replace("..", ".")
    return joined


def test_a_prompt_ends_where_the_assistant_goes_on():
    prompt = row(messages=messages(*TURNS)).prompt  # type: ignore[attr-defined]
    text = TOKENIZER.decode(encode_prompt(TOKENIZER, prompt, 999).prompt)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_only_the_assistants_turns_are_trained_on_each_with_its_end():
    encoding = encoded(row(messages=messages(*TURNS)))
    assert trained(encoding) == "Hello<|im_end|>.No<|im_end|>"
    text = TOKENIZER.apply_chat_template(messages(*TURNS), tokenize=False)
    assert TOKENIZER.decode([*encoding.prompt, *encoding.response]) == text.removesuffix("\n")


@pytest.mark.parametrize("answer", ["Hello", messages("assistant: Hello")])
def test_an_answer_after_a_conversation_is_the_assistants_turn(answer):
    encoding = encoded(row(prompt=messages(*TURNS[:3]), answer=answer))
    assert trained(encoding) == "Hello<|im_end|>", "earlier turns of the prompt are not trained on"


@pytest.mark.parametrize("prompt", ["Hi", messages("user: Hi")])
def test_a_prompt_of_text_is_the_users_turn_before_a_message(prompt):
    answered = row(prompt=prompt, answer=messages("assistant: Hello"))
    pair = {"prompt": prompt, "chosen": messages("assistant: Yes"), "rejected": "No"}
    (first, _), (yes, _), (no, _) = (
        (TOKENIZER.decode(columns.sequences.row(i)), metrics)
        for kind, item in (("responses", answered), ("pairs", checked_row(pair, "pairs", lambda: "row")))
        for columns, metrics in [given_columns(kind, [item], TOKENIZER, Data())]
        for i in range(len(columns))
    )
    prompt_text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert [first, yes, no] == [f"{prompt_text}{reply}<|im_end|>" for reply in ("Hello", "Yes", "No")]


def test_an_empty_turn_of_a_template_without_an_end_has_no_tokens():
    plain = byte_tokenizer()
    plain.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    made = row(messages=messages("user: Hi", "assistant: ", "user: More?", "assistant: No"))
    encoding = encode(plain, made.prompt, made.answer, 999, 999)  # type: ignore[attr-defined]
    assert plain.decode(encoding.response) == "More?No<eos>"


@pytest.mark.parametrize("answer", ["d", "end", "im", "", " |> ", "<|im_end"])
def test_an_answer_may_read_as_part_of_what_ends_it(answer):
    turn = {"role": "assistant", "content": answer}
    encoding = encoded(row(messages=[*messages("user: Hi"), turn, *messages("user: More?"), turn]))
    assert trained(encoding) == f"{answer}<|im_end|>.{answer}<|im_end|>"


def test_a_template_without_an_end_of_turn_gets_the_end_token():
    plain = byte_tokenizer()
    plain.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    made = row(messages=messages(*TURNS))
    encoding = encode(plain, made.prompt, made.answer, 999, 999)  # type: ignore[attr-defined]
    assert encoding.response[-1] == plain.eos_token_id
    assert end_tokens(plain, None, Sampling()) == (plain.eos_token_id,)


def test_the_end_of_a_turn_ends_responses_too():
    assert end_tokens(TOKENIZER, None, Sampling()) == (TOKENIZER.eos_token_id, END)
    named = GenerationConfig(eos_token_id=[END, 7])
    assert end_tokens(TOKENIZER, named, Sampling()) == (TOKENIZER.eos_token_id, END, 7)


def test_long_conversations_lose_their_oldest_questions_first():
    made = row(messages=messages("system: S", *TURNS[:3], "assistant: x"))
    prompt = [Message(**m) for m in messages("system: S", *TURNS[:3])]
    whole = len(encode_prompt(TOKENIZER, prompt, 999).prompt)
    encoding = encode_prompt(TOKENIZER, prompt, whole - 1)
    text = TOKENIZER.decode(encoding.prompt)
    assert text.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nMore?<|im_end|>")
    assert encoding.prompt_cut == whole - len(encoding.prompt)
    with pytest.raises(TooLong):  # its prompt is the first question alone
        encoded(made, 9)


def test_a_cut_prompt_keeps_the_token_that_begins_a_sequence():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    encoding = encode_prompt(tokenizer, "<s>a long question", 5)
    assert tokenizer.decode(encoding.prompt) == "<s>tion"
    assert len(encode_prompt(tokenizer, "<s>a long question", 1).prompt) == 1


def test_a_question_is_never_cut_within():
    prompt = [Message(**m) for m in messages("system: S", *TURNS[:2], "user: a long question")]
    whole = len(encode_prompt(TOKENIZER, prompt, 999).prompt)
    last = len(encode_prompt(TOKENIZER, [prompt[0], prompt[-1]], 999).prompt)
    assert len(encode_prompt(TOKENIZER, prompt, last).prompt) == last
    with pytest.raises(TooLong, match=f"a longer prompt, of {whole} tokens; got {last - 1}") as caught:
        encode_prompt(TOKENIZER, prompt, last - 1)
    assert caught.value.length == whole


def test_a_conversation_that_is_too_long_ends_with_a_whole_turn():
    made = row(messages=messages(*TURNS))
    (first, whole) = (len(encoded(made, max_response=n).response) for n in (99, 999))
    for limit in range(1, whole):
        encoding = encoded(made, max_response=limit)
        assert encoding.response_cut == whole - len(encoding.response)
        assert trained(encoding) == ("Hello<|im_end|>"[:limit] if limit < 6 else "Hello<|im_end|>")
    assert first == whole


def test_system_prompts_begin_conversations_that_have_none():
    for made in (row(prompt="Hi", answer="Hello"), row(messages=messages(*TURNS[:2]))):
        encoding = encoded(with_system_prompt(made, "Be kind."))
        assert TOKENIZER.decode(encoding.prompt).startswith(
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
        )
        assert trained(encoding) == "Hello<|im_end|>"
    own = row(messages=messages("system: Own", *TURNS[:2]))
    assert with_system_prompt(own, "Be kind.") == own


def test_a_tokenizer_without_a_template_says_so():
    with pytest.raises(
        InvalidJob, match=r"spec\.data: is a conversation, .* no chat template; give one as spec"
    ):
        check_template(byte_tokenizer(), "spec.data")


def test_a_template_that_refuses_or_rewrites_says_so():
    strict, forgetful = byte_tokenizer(), byte_tokenizer()
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidJob, match=r"spec\.data\.chatTemplate: the template refuses .* must alternate"):
        encode_prompt(strict, [Message(role="user", content="a")], 9)
    forgetful.chat_template = CHATML.replace("m['content']", "m['content'] if loop.last else ''")
    made = row(messages=messages(*TURNS))
    with pytest.raises(InvalidJob, match="differently once it follows"):
        encode(forgetful, made.prompt, made.answer, 999, 999)  # type: ignore[attr-defined]


def test_a_template_is_given_as_text_or_as_a_file(tmp_path):
    file = tmp_path / "chatml.jinja"
    file.write_text(CHATML)
    assert given_template(str(file)) == given_template(CHATML) == CHATML
    with pytest.raises(InvalidJob, match=r"neither a template nor a file .*; got 'chatml.jinja'"):
        given_template("chatml.jinja")


def sentencepiece() -> PreTrainedTokenizerFast:
    """Words with the space before them, as SentencePiece has it: one is put before all text."""
    pieces = [*"▁thefox\n", "th", "the", "▁the", "fo", "fox", "▁fox", "<eos>"]
    merges = [("t", "h"), ("th", "e"), ("f", "o"), ("fo", "x"), ("▁", "the"), ("▁", "fox")]
    model = models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def test_a_response_is_tokenized_as_it_is_read_after_its_prompt():
    tokenizer = sentencepiece()
    alone = tokenizer("fox", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(alone) == ["▁fox"], "the space that nobody wrote"
    encoding = encode(tokenizer, "the\n", "fox", 9, 9)
    assert tokenizer.convert_ids_to_tokens(encoding.response) == ["fox", "<eos>"]
    joins = continuation(tokenizer, "th", "e")  # "the" is one token, and the prompt is never read as that
    assert tokenizer.convert_ids_to_tokens(joins) == ["e"]


@pytest.mark.parametrize("ends", [False, True], ids=["adds BOS", "adds BOS and EOS"])
def test_a_text_has_one_begin_and_one_end_token(ends):
    """The tokenizer adds them, or the text has them, as data does that was rendered beforehand, or both."""
    tokenizer = prefixed_bpe(ends=ends)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    plain = encode(tokenizer, "the film", " was great", 99, 99)
    assert (plain.prompt[0], plain.prompt.count(begin), plain.prompt.count(end)) == (begin, 1, 0)
    assert (plain.response[-1], plain.response.count(end)) == (end, 1)
    for prompt in ("<s>the film", "<s><s>the film"):
        for response in (" was great", " was great</s>", " was great</s></s>"):
            encoding = encode(tokenizer, prompt, response, 99, 99)
            assert (encoding.prompt[0], encoding.prompt.count(begin)) == (begin, 1)
            assert (encoding.response, encoding.mask) == (plain.response, plain.mask)
    prompt_ids = encode_prompt(tokenizer, "the film</s>", 99).prompt
    assert (prompt_ids[-1], prompt_ids.count(end)) == (end, 1), "the end that the text has"


def test_a_turn_that_has_its_end_token_already_has_one():
    encoding = encoded(row(messages=messages("user: Hi", "assistant: Yes<|im_end|>", *TURNS[2:])))
    assert trained(encoding) == "Yes<|im_end|>.No<|im_end|>"


def test_a_reward_model_reads_a_conversation_by_its_own_template():
    prompt = [Message(role="user", content="Hi")]
    text = TOKENIZER.decode(encode_sampled(TOKENIZER, prompt, "Hello", ended=True))
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>"
    assert TOKENIZER.decode(encode_sampled(TOKENIZER, prompt, "Hello", ended=False)) + "<|im_end|>" == text


def test_the_losses_count_the_tokens_that_are_trained_on():
    rows = [row(messages=messages(*TURNS)), row(prompt="a", answer="b")]
    columns, _ = given_columns("responses", rows, TOKENIZER, Data(train=("unused",)))
    assert columns.mask is not None
    logprobs = torch.where(columns.mask, -2.0, -77.0)
    micro = MicroBatch.build(columns.sequences, [1, 0], pad_token_id=0)
    context = OpContext(job().spec, Frozen())
    value, _ = LOSSES["likelihood"](columns, context)(logprobs[micro.response_index], micro)
    assert value.item() == pytest.approx(2.0)
    own = Sequences.pack([((1,), (2, 3))])
    both, loss = mixed(own, lambda output, _micro: (output.sum() * 0, {}), columns, 0.5)
    micro = MicroBatch.build(both, [2, 1, 0], pad_token_id=0)
    value, named = loss(torch.cat([torch.zeros(2), logprobs])[micro.response_index], micro)
    assert (value.item(), named["pretraining_loss"].item()) == pytest.approx((1.0, 2.0))
    assert given_columns("responses", rows[1:], TOKENIZER, Data(train=("unused",)))[0].mask is None
    assert isinstance(columns, Columns)

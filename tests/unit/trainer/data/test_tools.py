"""Tools, their calls and variables of chat templates: rendered everywhere as the template alone would."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from tests.support.tiny.models import byte_tokenizer, chat_tokenizer
from tests.unit.api.manifests import job
from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import SET_HERE, Data
from rlhf_trainer.data.copies import local_file
from rlhf_trainer.data.encode import Encoded
from rlhf_trainer.data.imported import ImportedRows
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.ops.datasets import ENCODE
from rlhf_trainer.scoring.rewards import ModelScorer
from rlhf_trainer.tensors.records import Sequences

TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<result>{{ m.content }}</result>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}<|call|>{{ call.function | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
"""As Qwen's: tools in a system prompt, the results of several calls in one turn, and a variable."""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"day": None}}}]
QUESTION = {"role": "user", "content": "Rain?"}


def call(**arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": arguments}}


CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [call(city="Paris", day=None), call(city="Bonn")],
}
RESULTS = [{"role": "tool", "content": content, "name": None} for content in ("wet", "dry")]
LAST = {"role": "assistant", "content": "In Paris."}


def tool_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>", "<|call|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


TOKENIZER = tool_tokenizer()


def row(kind: Any = "responses", **fields: Any) -> Row:
    return checked_row(fields, kind, lambda: "row")


def rendered(messages: list[dict[str, Any]], **arguments: Any) -> str:
    """As Transformers alone renders the OpenAI format, without the fields that are null."""
    plain = [{k: v for k, v in m.items() if v is not None or k == "content"} for m in messages]
    return str(TOKENIZER.apply_chat_template(plain, tokenize=False, **arguments))


def encode(made: Row, data: Data | None = None, kind: Any = "responses") -> list[Encoded]:
    data = data or Data(train=("unused",), maxPromptLength=9999, maxResponseLength=9999)
    return ENCODE[kind]([made], TOKENIZER, data)


def decoded(encoding: Encoded) -> tuple[str, str]:
    return str(TOKENIZER.decode(encoding.prompt)), str(TOKENIZER.decode(encoding.response))


def test_a_given_conversation_with_tools_is_rendered_and_only_the_assistant_is_trained_on():
    messages = [QUESTION, CALLS, *RESULTS, LAST]
    (encoding,) = encode(row(messages=messages, tools=TOOLS))
    prompt, response = decoded(encoding)
    assert prompt + response + "\n" == rendered(messages, tools=TOOLS)
    trained = [token for token, mask in zip(encoding.response, encoding.mask, strict=True) if mask]
    calls = '<|call|>{"name": "weather", "arguments": {"city": "Paris", "day": null}}'
    calls += '<|call|>{"name": "weather", "arguments": {"city": "Bonn"}}<|im_end|>'
    assert TOKENIZER.decode(trained) == f"{calls}In Paris.<|im_end|>"


def test_a_turn_of_tool_calls_may_end_otherwise_than_text(monkeypatch):
    monkeypatch.setattr(
        TOKENIZER,
        "chat_template",
        TEMPLATE.replace(
            "{% endfor %}<|im_end|>\n{% endif %}",
            "{% endfor %}{{ '<eos>' if m.tool_calls else '<|im_end|>\n' }}{% endif %}",
        ),
    )
    (encoding,) = encode(row(messages=[QUESTION, CALLS]))
    assert decoded(encoding)[1].endswith('{"city": "Bonn"}}<eos>')
    assert all(encoding.mask)


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("kind", ["prompts", "responses", "pairs"])
def test_tools_and_variables_of_a_row_reach_the_template(kind, as_text):
    """Also as JSON text, since a column of Parquet has one type."""
    variables = {"enable_thinking": False}
    given = (
        {"tools": json.dumps(TOOLS), "chat_template_kwargs": json.dumps(variables)}
        if as_text
        else {"tools": TOOLS, "chat_template_kwargs": variables}
    )
    expected = rendered([QUESTION], tools=TOOLS, add_generation_prompt=True, enable_thinking=False)
    assert expected.endswith("<think></think>")
    data = Data(train=("unused",), maxPromptLength=9999)
    if kind == "prompts":
        (result,) = prompts([row(kind, prompt=[QUESTION], **given)], [(0, 0)], TOKENIZER, data)
        assert TOKENIZER.decode(result.tokens) == expected
        assert result.row == {"prompt": [QUESTION], **given}, "rewards get the row as it was"
        return
    answers = {"answer": "No."} if kind == "responses" else {"chosen": "No.", "rejected": "Yes."}
    TOKENIZER.chat_template, before = (
        TEMPLATE.replace(
            "{{ m.content or",
            "{% if m.role == 'assistant' and "
            "enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{{ m.content or",
        ),
        TEMPLATE,
    )
    try:
        for result in encode(row(kind, prompt=[QUESTION], **answers, **given), kind=kind):
            assert TOKENIZER.decode(result.prompt) == expected
    finally:
        TOKENIZER.chat_template = before


def test_variables_of_a_row_override_those_of_the_manifest():
    data = Data(train=("unused",), chatTemplateKwargs={"enable_thinking": False})
    rows = [
        row("prompts", prompt=[QUESTION], **more)
        for more in ({}, {"chat_template_kwargs": {"enable_thinking": True}})
    ]
    off, on = (TOKENIZER.decode(prompt.tokens) for prompt in prompts(rows, [(0, 0), (0, 1)], TOKENIZER, data))
    assert (off.endswith("<think></think>"), on.endswith("assistant\n")) == (True, True)


def test_a_reward_model_of_another_vocabulary_reads_the_tools_too():
    read = list[str]()
    own = tool_tokenizer()
    own.add_tokens(["<more>"])

    def scores(sequences: Sequences) -> torch.Tensor:
        read.append(str(own.decode(sequences.row(0))))
        return torch.zeros(len(sequences))

    scorer = ModelScorer(scores, 0, TOKENIZER, own, variables={"enable_thinking": False})
    response = TOKENIZER("No.")["input_ids"] + [TOKENIZER.convert_tokens_to_ids("<|im_end|>")]
    graded_row = {
        "prompt": [QUESTION, CALLS, *RESULTS],
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    sampled = replace(Sequences.pack([([1], response)]), finished=torch.tensor([True]))
    scorer(sampled, [graded_row])
    expected = rendered([*graded_row["prompt"], {"role": "assistant", "content": "No."}], tools=TOOLS)
    assert read == [expected.removesuffix("\n")]


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_what_the_template_does_not_read_is_refused(fields):
    made = row("prompts", prompt=[QUESTION], **fields)
    with pytest.raises(
        InvalidJob, match=r"the template reads no '(tools|enable_thinking)'; give one that does"
    ):
        prompts([made], [(0, 0)], chat_tokenizer(), Data(train=("unused",)))
    empty = row("prompts", prompt=[QUESTION], tools=[], chat_template_kwargs={"documents": None})
    assert prompts([empty], [(0, 0)], chat_tokenizer(), Data(train=("unused",)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": "hammer"}, "tools must be a list of objects, or JSON text of it; got 'hammer'"),
        ({"tools": ["hammer"]}, r"tools must be a list of objects; got \[\"hammer\"\]"),
        (
            {"chat_template_kwargs": [1]},
            r"chat_template_kwargs must be an object, or JSON text of it; got \[1\]",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize is no variable of chat templates"),
    ],
)
def test_arguments_that_are_none_are_refused(fields, message):
    with pytest.raises(InvalidJob, match=f"^row: {message}"):
        row("prompts", prompt=[QUESTION], **fields)
    assert row("prompts", prompt="Rain?", **fields), "of plain text it is a field for reward functions"


def test_the_manifest_sets_no_argument_of_the_rendering_itself():
    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters.values()
    named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {
        "self",
        "tools",
        "documents",
    }
    assert named | {"messages"} == set(SET_HERE)
    with pytest.raises(
        InvalidJob, match=r"spec\.data\.chatTemplateKwargs: chat_template is no variable of chat templ"
    ):
        job("spec.data.chatTemplateKwargs={chat_template: x}")
    assert job("spec.data.chatTemplateKwargs={enable_thinking: false}").spec.data.chat_template_kwargs


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": None}, {"role": "assistant", "content": None, "tool_calls": []}]
)
def test_only_a_message_of_tool_calls_may_have_no_text(message):
    with pytest.raises(InvalidJob, match="only an assistant's message with tool_calls may have null"):
        row("prompts", prompt=[message, QUESTION])


def test_arguments_that_a_call_lacks_are_not_made_null_by_a_table(tmp_path: Path, monkeypatch):
    """In Parquet, each call has the keys of all calls of its column."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = {"role": "assistant", "tool_calls": [call(city="Paris"), call(day="Monday")]}
    table = [{"messages": [QUESTION, calls, RESULTS[0], LAST], "tools": TOOLS, "other": [{"a": None}]}]
    parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "rows.parquet")
    (line,) = local_file(str(tmp_path / "rows.parquet")).read_text().splitlines()
    made = row(**json.loads(line))
    assert (
        '{"city": "Paris"}}<|call|>{"name": "weather", "arguments": {"day": "Monday"}}'
        in decoded(encode(made)[0])[1]
    )
    assert json.loads(line)["other"] == [{"a": None}], "what no template reads is as it was"
    code = "from pyarrow import parquet\ndef rows():\n"
    code += f"    return parquet.read_table('{tmp_path}/rows.parquet').to_pylist()"
    (tmp_path / "table_of_this_test.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert encode(ImportedRows("table_of_this_test:rows", "responses")[0]) == encode(made)

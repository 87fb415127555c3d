"""Tool calls in a model's text: the formats of chat models, and what is broken in them."""

import pytest

from rlhf_trainer.environments.tool_calls import ToolCall, parse_calls

ADD = ToolCall("add", {"a": 2, "b": 3})
BLOCK = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        f"I add them.\n{BLOCK}<|im_end|>",
        f"<think>\nor {BLOCK}?\n</think>\n\n{BLOCK}",
        '<tool_call>{"name":"add","arguments":{"a":2,"b":3}}</tool_call>',
        '<tool_call>\n\n   {"name" :"add" ,\n"arguments": {"a" : 2, "b": 3} }  ',
        '<tool_call>{"arguments": "{\\"a\\": 2, \\"b\\": 3}", "name": "add"}</tool_call>',
        '{"name": "add", "parameters": {"a": 2, "b": 3}}<|eot_id|>',
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 2, "b": 3}}<|eom_id|>',
        '\n {"name": "add", "arguments": {"a": 2, "b": 3}} ',
    ],
)
def test_a_call_is_parsed_in_each_format(text: str) -> None:
    assert parse_calls(text) == [ADD]


@pytest.mark.parametrize(
    "text",
    [
        f"{BLOCK}\n{BLOCK}",
        BLOCK.removesuffix("</tool_call>") + BLOCK,
        '{"name":"add","parameters":{"a":2,"b":3}}; ' * 2,
    ],
)
def test_several_calls_are_parsed_in_their_order(text: str) -> None:
    assert parse_calls(text) == [ADD, ADD]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "I would call add(2, 3).",
        '{"sum": 5}',
        '{"name": "Ada"}',
        "{5}",
        f"<think>{BLOCK}</think> 5",
        "{" * 5000,
    ],
)
def test_other_text_is_no_call(text: str) -> None:
    assert parse_calls(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": 2', "not valid JSON"),
        ("<tool_call>add(2, 3)</tool_call>", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", 'an object with "name"'),
        ('<tool_call>{"name": 5}</tool_call>', 'an object with "name"'),
        ('<tool_call>{"name": "add", "arguments": [2, 3]}</tool_call>', "must be an object"),
        ('<tool_call>{"name": "add", "arguments": "2"}</tool_call>', "must be an object"),
        ('<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "not valid JSON"),
        ("<tool_call>" + "[" * 100_000, "not valid JSON"),
        ('{"name": "add", "parameters": {"a": 2', "not valid JSON"),
    ],
)
def test_a_broken_call_says_what_is_wrong(text: str, problem: str) -> None:
    (call,) = parse_calls(text)
    assert problem in call.problem

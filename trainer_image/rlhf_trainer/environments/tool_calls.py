"""Parses tool calls from the text of a model's turn: Hermes' and Qwen's `<tool_call>` blocks, and Llama's bare JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_THOUGHT_END = "</think>"
_BARE = re.compile(r"(?:<\|python_tag\|>)?\s*(\{.*)", re.DOTALL)
_BEGUN = re.compile(r'\{(?=.*"name"\s*:).*"(parameters|arguments)"\s*:', re.DOTALL)
"""An object that has both keys of a call, whole or cut off."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote; `problem` is why it cannot be read, for the model to read, else empty."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def parse_calls(text: str) -> list[ToolCall]:
    """The calls in a turn, in their order; none where it has no call. A block that is cut off or no call is one with a
    `problem`. Calls within the model's reasoning, up to `</think>`, are none. Bare JSON is a call only if the turn is
    nothing else, has a `name` and has `parameters` or `arguments`."""
    spoken = text.rpartition(_THOUGHT_END)[2]
    if blocks := _BLOCK.findall(spoken):
        return [_parsed(block) for block in blocks]
    bare = _BARE.fullmatch(_without_end(spoken).strip())
    return _bare_calls(bare[1]) if bare else []


def text_without(text: str) -> str:
    """The text of a turn that has calls, without them."""
    thoughts, mark, spoken = text.rpartition(_THOUGHT_END)
    rest, count = _BLOCK.subn("", spoken)
    return f"{thoughts}{mark}{rest if count else ''}".strip()


def _without_end(text: str) -> str:
    """The text without the special token that ends a turn."""
    return re.sub(r"(<\|[a-z_]+\|>|</s>)\s*\Z", "", text)


def _bare_calls(text: str) -> list[ToolCall]:
    """Llama's calls, which several are separated by semicolons."""
    if _BEGUN.match(text) is None:
        return []
    calls, at = list[ToolCall](), 0
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            return [*calls, ToolCall(problem=f"the tool call is not valid JSON: {error}")]
        calls.append(_of_object(value))
        at = end + len(text[end:]) - len(text[end:].lstrip(" \t\r\n;"))
    return calls


def _parsed(block: str) -> ToolCall:
    try:
        value = json.loads(block)
    except (ValueError, RecursionError) as error:
        return ToolCall(problem=f"the tool call is not valid JSON: {error}")
    return _of_object(value)


def _of_object(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall(problem='a tool call is an object with "name" and "arguments"')
    named = [key for key in ("arguments", "parameters") if key in value]
    arguments = value[named[0]] if named else {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(value["name"], problem=f"the arguments are not valid JSON: {error}")
    if not isinstance(arguments or {}, dict):
        return ToolCall(value["name"], problem="the arguments must be an object")
    return ToolCall(value["name"], arguments or {})

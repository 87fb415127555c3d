"""Requests of chat completions by a program, in the form in which they are compared and rendered; pure."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from rlhf_api.errors.problem import show

Message = dict[str, Any]
_READ = frozenset({"messages", "model", "tools", "stream", "stream_options"})
_ONLY: Mapping[str, Sequence[JsonValue]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tool_choice": ("auto",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "functions": (),
    "function_call": (),
}
"""Fields that ask for another kind of reply, with the values that do not."""
_NOTHING: tuple[Any, ...] = (None, "", [], {})


class Refusal(Exception):
    """The request gets this HTTP `status` and reason; the episode goes on."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    name: Annotated[str, Field(min_length=1)]


class _Offer(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    function: _Tool


class _Options(BaseModel):
    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A request; `model_extra` has the fields that are not read."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    messages: Annotated[list[dict[str, JsonValue]], Field(min_length=1)]
    model: str = ""
    tools: list[_Offer] | None = None
    stream: bool | None = None
    stream_options: _Options | None = None

    @property
    def offers(self) -> list[dict[str, Any]]:
        """The schemas of the tools."""
        return [tool.model_dump() for tool in self.tools or ()]

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def ignored(self) -> set[str]:
        """Names of fields that have no effect, as sampling is the job's."""
        return {name for name, value in (self.model_extra or {}).items() if value is not None} - _ONLY.keys()


def read_request(body: bytes) -> ChatRequest:
    """Raises Refusal for what is no request of chat completions, or asks for what the policy's turns have not."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Refusal(400, f"{where}: {first['msg']}; got {show(first['input'])}") from None
    extra = request.model_extra or {}
    for name, accepted in _ONLY.items():
        value = extra.get(name)
        if value is not None and value not in accepted:
            also = " or ".join(["nothing", *map(show, accepted)])
            raise Refusal(
                400, f"{name}: an environment's turns have no such thing; use {also}; got {show(value)}"
            )
    return request


def plain_message(message: Mapping[str, Any]) -> Message:
    """A message as templates read it: text in place of its parts, calls with their arguments as objects, and nothing
    that is empty but the content. Raises Refusal for one that is none, or has parts that are no text."""
    made = {name: value for name, value in message.items() if value not in _NOTHING}
    if not isinstance(made.get("role"), str):
        raise Refusal(400, f"a message must have a role; got {show(message)}")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise Refusal(400, f"the parts of a message must be text; got {show(content)}")
        content = "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise Refusal(400, f"the content of a message must be text; got {show(content)}")
    calls = made.get("tool_calls")
    if calls is not None:
        made["tool_calls"] = [_call(each) for each in (calls if isinstance(calls, list) else [calls])]
    return {**made, "content": content or (None if calls else "")}


def new_messages(history: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """The messages after those of the conversation so far; none where these do not continue it: one was changed, is
    missing, or is an assistant's that the policy did not write."""
    if not all(map(_is_same, history, messages)):
        return []
    new = [*messages[len(history) :]]
    return [] if any(each["role"] == "assistant" for each in new) else new


def _is_same(known: Message, given: Message) -> bool:
    """The assistant's text may have lost spaces at its ends, and fields that we do not know may have come to it: the
    policy goes on from the tokens that it sampled."""
    if known["role"] != "assistant" or given["role"] != "assistant":
        return known == given
    return (known["content"] or "").strip() == (given["content"] or "").strip() and (
        _calls_of(known) == _calls_of(given)
    )


def _calls_of(message: Message) -> list[Any]:
    return [(call.get("id"), call["function"]) for call in message.get("tool_calls", [])]


def _call(call: Any) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refusal(400, f"a tool call must have a function with a name; got {show(call)}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # a template shows what is no JSON as it is
            arguments = json.loads(arguments)
    return {**call, "function": {"name": function["name"], "arguments": arguments}}

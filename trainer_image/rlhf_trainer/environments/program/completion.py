"""A turn of the policy as a chat completion, whole or in the events of a stream; pure."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..tool_calls import parse_calls, text_without
from ..turn_text import TurnText

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Completion:
    """`message`: the assistant's."""

    number: int
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, int]

    def whole(self, model: str) -> bytes:
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish_reason, "logprobs": None}
        body = {**self._head("chat.completion", model), "choices": [choice], "usage": self.usage}
        return json.dumps(body).encode()

    def events(self, model: str, *, with_usage: bool) -> Iterator[bytes]:
        """Server-sent events: the message is one of them, as it is whole by now."""
        head = self._head("chat.completion.chunk", model)
        delta = {name: value for name, value in self.message.items() if name != "tool_calls"}
        if calls := self.message.get("tool_calls"):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        for change, reason in ((delta, None), ({}, self.finish_reason)):
            choice = {"index": 0, "delta": change, "finish_reason": reason, "logprobs": None}
            yield _event({**head, "choices": [choice]})
        if with_usage:
            yield _event({**head, "choices": [], "usage": self.usage})
        yield DONE

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.number}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def completion_of(turn: TurnText, number: int, *, offers_tools: bool) -> Completion:
    """The completion of an episode's turn of this number. A call that cannot be read leaves the turn as text, as vLLM
    does. Ids of calls are the same each time that the episode is played, of nine digits, as some templates need."""
    calls = parse_calls(turn.raw) if offers_tools else []
    if any(call.problem for call in calls):
        calls = []
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if calls:
        message["content"] = text_without(turn.text) or None
        message["tool_calls"] = [
            {
                "id": f"{number:05}{index:04}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for index, call in enumerate(calls)
        ]
    reason = "length" if not turn.is_whole else "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": turn.before, "completion_tokens": turn.sampled}
    return Completion(number, message, reason, {**usage, "total_tokens": turn.before + turn.sampled})


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"

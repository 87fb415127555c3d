"""One episode of the user's class, whichever of two shapes it has. Imports no torch.

A class with `step` is of our shape: `reset(row)` returns the opening, messages or a user's text, or None for the row's
own prompt; `step(message)` returns a `Step`. Other classes are of TRL's: `reset(**row)` returns text that is added to
the prompt, or None, and the reward is `get_reward()` or `reward` once the model's turn calls no tool. All other public
methods are tools in both. Any method may be a coroutine.
"""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf_api.errors.problem import show
from rlhf_api.host.imports import described
from rlhf_api.host.printing import write_line

from ..process.limits import is_limit
from ..process.numbers import finite_number
from .arguments import bind_arguments
from .episode_sandbox import SandboxExhausted, SandboxLost
from .step import Step
from .tool_calls import ToolCall, parse_calls
from .turn_text import TurnText

NO_TOOLS = ("reset", "step", "get_reward", "close")
"""Public methods that the model does not call."""
Messages = list[dict[str, Any]]


class Unfit(Exception):
    """The class, or what it returned, is not what an environment is."""


@dataclass(frozen=True)
class Opening:
    """Opening of an episode: with `messages` in place of the row's prompt, or with `text`, a user's message in its
    place or, if `added`, more text of its last one; with neither, as the row's prompt is."""

    messages: Messages | None = None
    text: str | None = None
    added: bool = False
    tools: list[dict[str, Any]] | None = None
    """Schemas of the tools that this episode offers, in place of the row's."""


def is_native(kind: type[Any]) -> bool:
    return callable(getattr(kind, "step", None))


def tools_of(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    """The class's tools by name."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return {name: each for name, each in members if not name.startswith("_") and name not in NO_TOOLS}


def schemas_of(kind: type[Any]) -> list[dict[str, Any]]:
    """JSON schemas of the tools, as chat templates read them. Raises Unfit for one without types or docstring."""
    if not (tools := tools_of(kind)):
        return []
    try:
        from transformers.utils.chat_template_utils import get_json_schema  # takes two seconds
    except ImportError as error:
        remedy = f"run `{sys.executable} -m pip install transformers`"
        raise Unfit(f"has tools, whose schemas transformers makes; {remedy} ({error})") from error

    made = list[dict[str, Any]]()
    for name, tool in tools.items():
        try:
            schema = get_json_schema(tool)
        except Exception as error:
            remedy = "give types and a docstring with Args:, or begin its name with _ if it is none"
            raise Unfit(f"the tool {name} has no schema; {remedy}: {error}") from error
        schema["function"]["parameters"]["properties"].pop("self", None)
        made.append(schema)
    return made


def is_sync(kind: type[Any]) -> bool:
    """True if no method is a coroutine: then calls of one process come one after another."""
    return not any(inspect.iscoroutinefunction(each) for _, each in inspect.getmembers(kind))


class EpisodeOfClass:
    """An episode: `reset` once, `step` for each turn, `end` at last."""

    def __init__(self, kind: type[Any], settings: Mapping[str, Any]) -> None:
        self._own, self._native = kind(**settings), is_native(kind)
        self._tools = {name: getattr(self._own, name) for name in tools_of(kind)}

    async def reset(self, row: Mapping[str, Any]) -> Opening:
        """Raises Unfit for anything but text, messages or None."""
        made = await _result(self._own.reset(dict(row)) if self._native else self._own.reset(**row))
        if made is None:
            return Opening()
        if isinstance(made, str):
            return Opening(text=_unicode(made, "reset"), added=not self._native)
        if not self._native:
            raise Unfit(f"reset must return text or None; got {show(made)}")
        messages = _messages(made, "reset")
        if messages[-1]["role"] == "assistant":
            raise Unfit(
                "the last message of reset must not be the assistant's, as the model's turn follows it"
            )
        return Opening(messages=messages)

    async def step(self, turn: TurnText) -> Step:
        """The reply to a turn. Tools that it calls are run; the model reads what they return or raise. An episode whose
        commands have exhausted its sandbox ends. Raises Unfit for no valid reply."""
        try:
            return await self._step(turn)
        except SandboxExhausted as error:
            write_line(f"an episode ends: {error}", sys.stderr)
        with suppress(SandboxExhausted):
            return Step(reward=0.0 if self._native else await self._reward(), done=True)
        return Step(done=True)

    async def _step(self, turn: TurnText) -> Step:
        if self._tools and (calls := parse_calls(turn.raw)):
            return Step([await self._called(call) for call in calls])
        if not self._native:
            return Step(reward=await self._reward(), done=True)
        made = await _result(self._own.step({"role": "assistant", "content": turn.text}))
        if not isinstance(made, tuple) or len(made) != 3:
            raise Unfit(f"step must return a Step, or (messages, reward, done); got {show(made)}")
        messages, reward, done = made
        done = done.item() if getattr(done, "ndim", None) == 0 else done
        if not isinstance(done, bool):
            raise Unfit(f"done must be True or False; got {show(done)}")
        if done:
            return Step(reward=checked_reward(reward), done=True)
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return Step(_messages(messages, "step"), checked_reward(reward))

    async def end(self, *, cut: bool) -> float:
        """Closes the environment. The reward that an episode which a limit `cut` has besides those of its turns."""
        reward = await self._reward() if cut and not self._native else 0.0
        if callable(close := getattr(self._own, "close", None)):
            try:
                await _result(close())
            except Exception as error:  # the episode has ended, with its reward
                write_line(f"close raised {described(error)}", sys.stderr)
        return reward

    async def _reward(self) -> float:
        if callable(get := getattr(self._own, "get_reward", None)):
            return checked_reward(await _result(get()))
        if not hasattr(self._own, "reward"):
            raise Unfit("has neither step, nor get_reward or reward")
        return checked_reward(self._own.reward)

    async def _called(self, call: ToolCall) -> dict[str, Any]:
        reply = {"role": "tool", "name": _valid(call.name), "content": ""}
        tool = self._tools.get(call.name)
        if call.problem or tool is None:
            known = ", ".join(self._tools)
            return reply | {
                "content": _error(call.problem or f"there is no tool {call.name!r}; tools: {known}")
            }
        try:
            bound = bind_arguments(tool, call.arguments)
        except TypeError as error:
            return reply | {"content": _error(f"{call.name}: {error}")}
        try:
            made = await _result(tool(*bound.args, **bound.kwargs))
            return reply | {
                "content": _valid(made) if isinstance(made, str) else json.dumps(made, default=str)
            }
        except Exception as error:
            if is_limit(error) or isinstance(error, SandboxLost | SandboxExhausted):
                raise
            return reply | {"content": _error(f"{type(error).__name__}: {error}")}


def check_class(kind: Any, settings: Mapping[str, Any]) -> None:
    """Raises Unfit for what is no environment, or does not take the settings."""
    if not inspect.isclass(kind):
        raise Unfit(f"is a {type(kind).__name__}, not a class")
    if not callable(getattr(kind, "reset", None)):
        raise Unfit("has no method reset")
    if not is_native(kind) and not tools_of(kind):
        raise Unfit("has neither a method step nor any tools")
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        raise Unfit(f"does not take spec.environment.settings: {error}") from None
    except ValueError:  # a class without a signature
        return


def checked_reward(value: Any) -> float:
    """Raises Unfit for anything but a finite number."""
    try:
        return finite_number(value, LARGEST_REWARD)
    except ValueError as error:
        raise Unfit(f"a reward {error}") from None


LARGEST_REWARD = 1e30
"""Of one turn: sums of them stay finite in float32."""


def _messages(made: Any, method: str) -> Messages:
    """Raises Unfit for anything but a list of messages with JSON in them."""
    if not isinstance(made, Sequence) or isinstance(made, str | bytes) or not made:
        what = "text, messages or None" if method == "reset" else "messages, at least one"
        raise Unfit(f"{method} must return {what}; got {show(made)}")
    for each in made:
        if not isinstance(each, Mapping) or not all(
            isinstance(each.get(key), str) for key in ("role", "content")
        ):
            raise Unfit(f"a message of {method} must have role and content, both text; got {show(each)}")
        if each["role"] == "assistant" and method == "step":
            raise Unfit(f"a reply has no message of the assistant; got {show(each)}")
    try:
        text = json.dumps([dict(each) for each in made], ensure_ascii=False)
        return [dict(each) for each in json.loads(text.encode())]
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"the messages of {method} cannot be JSON: {described(error)}") from None


def _unicode(text: str, method: str) -> str:
    """Raises Unfit for text with half of a surrogate pair, of which there are no tokens."""
    if _valid(text) != text:
        raise Unfit(f"the text of {method} is no Unicode; got {show(text)}")
    return text


def _valid(text: str) -> str:
    """The text, with escapes in place of halves of surrogate pairs: the model can write these in a call's JSON."""
    return text.encode(errors="backslashreplace").decode()


def _error(message: str) -> str:
    return json.dumps({"error": message[:1000]})


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value

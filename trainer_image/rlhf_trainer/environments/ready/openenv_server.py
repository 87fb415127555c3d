"""Plays episodes on an OpenEnv server, by its protocol: JSON over a WebSocket, a session of the server each."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict

from rlhf_api.errors.problem import show

from ..step import Step
from .row_seed import seed_of

UNREACHED = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors that another try may not have."""
_METADATA = "metadata"


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True)

    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []


class _Schemas(BaseModel):
    """The reply of `/schema`."""

    model_config = ConfigDict(frozen=True)

    action: _Fields


class _Observed(BaseModel):
    """The reply to a reset or a step."""

    model_config = ConfigDict(frozen=True)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


class _InvalidAction(Exception):
    """The server takes no such action."""


class OpenEnvServer:
    """A turn is one field of the server's action; a field of its observation, or all of them as JSON, is the reply. An
    action that the server's schema refuses costs a turn, with the error as the reply."""

    def __init__(
        self, *, url: str, action: str | None = None, observation: str | None = None, **settings: Any
    ) -> None:
        """`url`: with http:// or https://; `action`, `observation`: names of fields, needed where there are several;
        `settings`: arguments of the environment's `reset`."""
        self._url, self._named, self._observation, self._settings = url, action, observation, settings
        self._session: aiohttp.ClientSession | None = None

    async def reset(self, row: Mapping[str, Any]) -> str:
        try:
            self._session = aiohttp.ClientSession()
            async with self._session.get(f"{self._url.rstrip('/')}/schema", raise_for_status=True) as reply:
                fields = _Schemas.model_validate_json(await reply.read()).action
            self._action, self._is_text = _field(fields, self._named)
            self._socket = await self._session.ws_connect(f"{self._url.rstrip('/')}/ws")
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{self._url}: {error}") from error
        return self._text(await self._ask("reset", {"seed": seed_of(row), **self._settings}))

    async def step(self, message: Mapping[str, Any]) -> Step:
        try:
            reply = await self._ask("step", {self._action: self._value(message["content"])})
        except _InvalidAction as error:
            return Step(f"Invalid action: {error}")
        return Step(self._text(reply), reply.reward or 0.0, reply.done)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, kind: str, content: Mapping[str, Any]) -> _Observed:
        try:
            await self._socket.send_json({"type": kind, "data": content})
            received = await self._socket.receive()
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{self._url}: {error}") from error
        if received.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(f"{self._url} closed the session of an episode")
        reply = json.loads(received.data)
        if reply.get("type") == "error":
            _raise_error(reply.get("data") or {}, kind)
        return _Observed.model_validate(reply.get("data"))

    def _value(self, text: str) -> Any:
        """The text; or the value that it is in JSON, for a field of another type."""
        if self._is_text:
            return text
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _text(self, reply: _Observed) -> str:
        fields = {name: each for name, each in reply.observation.items() if name != _METADATA}
        if self._observation is not None and self._observation not in fields:
            raise ValueError(f"the observation has no {self._observation!r}; it has {', '.join(fields)}")
        single = self._observation or (next(iter(fields)) if len(fields) == 1 else None)
        made = fields if single is None else fields[single]
        return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def _field(fields: _Fields, name: str | None) -> tuple[str, bool]:
    """The action's field that a turn is, and whether it is text. Raises ValueError where it is to be named."""
    known = [each for each in fields.properties if each != _METADATA]
    required = [each for each in fields.required if each in known]
    if name is None:
        name = next((each[0] for each in (known, required) if len(each) == 1), None)
    if name not in known:
        message = f"an action of the server has the fields {', '.join(known)}: set action to one of them"
        raise ValueError(f"{message}; got {show(name)}")
    return name, fields.properties[name].get("type") == "string"


def _raise_error(error: Mapping[str, Any], kind: str) -> None:
    message = str(error.get("message"))
    if error.get("code") == "VALIDATION_ERROR" and kind == "step":
        details = error.get("errors") or []
        raise _InvalidAction("; ".join(str(each.get("msg")) for each in details) or message)
    if error.get("code") in UNREACHED:
        raise ConnectionError(message)
    raise RuntimeError(f"the server's {kind} failed: {message}")

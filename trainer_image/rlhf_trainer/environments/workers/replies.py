"""Checks replies of workers that other processes pass on, which may be anything."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from ..adapter import Unfit, checked_reward


class _Reply(BaseModel, strict=True):
    seconds: float = Field(ge=0, allow_inf_nan=False)


class _Opening(_Reply):
    messages: list[dict[str, Any]] | None
    text: str | None
    added: bool
    tools: list[dict[str, Any]] | None


class _Step(_Reply):
    messages: list[dict[str, Any]] | str
    reward: float
    done: bool
    branch: bool = False
    cut: bool = False
    tools: list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _has_messages(self) -> Self:
        if not self.done and isinstance(self.messages, str):
            raise ValueError("text is no messages")
        return self


class _End(_Reply):
    reward: float


_KINDS: Mapping[str, type[_Reply]] = {"reset": _Opening, "step": _Step, "end": _End}


def check_reply(do: str, reply: Mapping[str, Any]) -> None:
    """Raises Unfit for what is no reply to this call, as the protocol of `worker` has it."""
    if any(isinstance(reply.get(name), str) for name in ("failed", "error")):
        return
    try:
        checked = _KINDS[do].model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "messages"
        raise Unfit(f"the environment's process sent no reply to {do}: {where}: {first['msg']}") from None
    if isinstance(checked, _Step | _End):
        checked_reward(checked.reward)

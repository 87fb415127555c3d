"""How an item that a member of a role works on ends, and what a round of items came to."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rlhf_api.run import Member

Item = TypeVar("Item")
Result = TypeVar("Result")
_Item = TypeVar("_Item", contravariant=True)
_Result = TypeVar("_Result", covariant=True)


class Refused(Exception):
    """The item itself cannot be done, by nobody: it is not tried again."""


class Failed(Exception):
    """The item was not done, though its member lives: it is tried again, `dispatch.TRIES` times in all."""


class Interrupted(Exception):
    """The member stopped working on the item while its round was closing: another round goes on with it."""


class Ask(Protocol[_Item, _Result]):
    """Has a member do an item, and calls `progress` whenever it shows that it works on it. Cancelled, it gives up.

    Raises Refused, Failed, Interrupted, InvalidJob or HttpError 4xx, which end the round, or, where the member failed,
    one of aiohttp.ClientError, OSError, ValueError and HttpError.
    """

    def __call__(
        self, member: Member, item: _Item, progress: Callable[[], None], /
    ) -> Awaitable[_Result]: ...


@dataclass(frozen=True)
class Outcome(Generic[Item, Result]):
    """The results, in the order of their items; items that nobody did; which members failed and why, by uid; items
    that are given up and why; and items that were handed out again, each as often as that happened."""

    results: list[tuple[Item, Result]]
    unanswered: list[Item]
    failed: dict[str, str]
    refused: list[tuple[Item, str]]
    requeued: list[Item]

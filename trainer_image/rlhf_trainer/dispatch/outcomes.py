"""Results and failure types of work items, and the outcome of a round."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from rlhf_api.contract.run import Member

from .assignments import Assigned

Item = TypeVar("Item")
Result = TypeVar("Result")
_Item = TypeVar("_Item", contravariant=True)
_Result = TypeVar("_Result", covariant=True)


class Refused(Exception):
    """The item itself cannot be done by any member: no retry."""


class Failed(Exception):
    """The item failed on a member that lives: it is retried, `dispatch.TRIES` times in all."""


class Interrupted(Exception):
    """The member stopped work on the item because its round was closing; the next round continues it."""


class Client(Protocol[_Item, _Result]):
    """Client of the servers of a role."""

    async def ask(self, member: Member, item: _Item, progress: Callable[[], None], /) -> _Result:
        """Sends an item to a member and calls `progress` whenever the member makes progress. Can be cancelled.

        Raises Refused, Failed, Interrupted; InvalidJob or an HttpError `of_request`, which end the round; or, where the
        member failed, one of aiohttp.ClientError, OSError, ValueError and HttpError.
        """

    async def listens(self, member: Member, /) -> bool:
        """True if the server accepts connections, even if it is slow."""


class UnderWay(NamedTuple, Generic[Item, Result]):
    """An item that a member works on after the end of the round that assigned it, until the next one takes it over."""

    item: Item
    assigned: Assigned
    task: "asyncio.Future[Result]"


@dataclass(frozen=True)
class Outcome(Generic[Item, Result]):
    """Results in the order of their items; items left undone, of which some may be under way; failed members, uid ->
    reason; items given up, with the reason; and retried items, once for each retry."""

    results: list[tuple[Item, Result]]
    unanswered: list[Item]
    failed: dict[str, str]
    refused: list[tuple[Item, str]]
    requeued: list[Item]
    under_way: Sequence[UnderWay[Item, Result]] = ()

"""Client of the reward and reference roles: sends a batch to the members in chunks, with retries."""

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import Member

from .. import faults
from ..batches import plan
from ..comms.assignments import Limits
from ..comms.dispatch import Dispatch, Observer
from ..comms.http import HttpClient, HttpError
from ..comms.outcomes import Failed, Outcome
from ..comms.roster import Roster, Stopped, Unavailable
from ..comms.wire import decode, encode
from ..records import Sequences
from .messages import pack, places

log = logging.getLogger(__name__)

AHEAD = 2
"""Chunks per member at once: one in progress and one queued."""
PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.2
LAST_SECONDS = 5.0
"""Seconds that running scoring may still take once the run is to stop: otherwise the responses would have to be
generated again.
"""

Chunk = list[int]
"""Row indices of a batch, ascending."""
Reply = tuple[Tensor, Mapping[str, Any]]
"""The requested array, and the header."""


class ScoringFailed(RuntimeError):
    """Members that live failed at a chunk, or took longer than the timeout, several times."""


class Scorer:
    """Sends requests to the members of a role; while none replies, waits for a replacement until a deadline.

    A chunk is one micro-batch of the member's model, so that values depend neither on the number of members nor on
    retries. Cancelling a chunk closes its connection, and the member drops it unless it has begun.
    """

    def __init__(
        self,
        role: Role,
        route: str,
        *,
        http: HttpClient,
        roster: Roster,
        chunk_tokens: int,
        timeout: float,
        patience: float,
    ) -> None:
        """`chunk_tokens`: padded tokens per chunk; `timeout`: a member's deadline for a chunk, seconds; `patience`:
        seconds to wait for a member that responds."""
        self._role, self._route = role, route
        self._http, self._roster = http, roster
        self._chunk_tokens, self._timeout, self._patience = chunk_tokens, timeout, patience

    def ask(
        self,
        sequences: Sequences,
        array: str,
        rows: Sequence[Any] | None = None,
        replied: Callable[[Chunk, Mapping[str, Any]], None] = lambda _chunk, _header: None,
        **header: Any,
    ) -> Tensor:
        """The named array of the replies, over all sequences in their order: float32. `replied` is called with each
        chunk and its reply's header.

        Raises:
            InvalidJob: the role says that the job itself is at fault.
            Unavailable: no member replied in time.
            ScoringFailed: members that live failed at a chunk, or took longer than the timeout, several times.
            Stopped: the run is to stop, and the members fail or need longer than LAST_SECONDS.
        """
        client = _ChunkClient(self._http, self._route, sequences, array, rows, header)
        waiting: list[Chunk] = [sorted(c) for c in plan(sequences.lengths.tolist(), 1, self._chunk_tokens)[0]]
        found = torch.zeros(len(places(array, sequences, torch.arange(len(sequences)))))
        progressed = time.monotonic()
        while waiting:
            members = self._roster.wait(self._role, 1, self._patience)
            outcome = self._result(self._round(members, waiting, client))
            for chunk, (values, reply) in outcome.results:
                found[places(array, sequences, torch.tensor(chunk))] = values
                replied(chunk, reply)
                progressed = time.monotonic()
            waiting = outcome.unanswered
            if waiting:
                if self._roster.stopping:
                    raise Stopped(f"stopped while the {self._role.value} failed")
                reasons = "; ".join(outcome.failed.values()) or "none takes work"
                if time.monotonic() > progressed + self._timeout + self._patience:
                    raise Unavailable(f"every {self._role.value} fails: {reasons}; see its log")
                log.warning("no %s answers (%s); trying again", self._role.value, reasons)
                time.sleep(PAUSE_SECONDS)
        return found

    def _round(
        self, members: Sequence[Member], chunks: Sequence[Chunk], client: "_ChunkClient"
    ) -> Coroutine[Any, Any, Outcome[Chunk, Reply]]:
        def gave_up(chunk: Chunk, why: str) -> None:
            tokens = int(client.sequences.lengths[chunk].sum())
            raise ScoringFailed(
                f"the {self._role.value} failed at {len(chunk)} responses of {tokens} tokens: {why}; see its log"
            )

        return Dispatch(
            chunks,
            members,
            client,
            current=lambda: self._roster.present(self._role),
            limits=Limits(AHEAD, self._timeout),
            describe=lambda chunk: f"{len(chunk)} responses for the {self._role.value}",
            observer=Observer(gave_up=gave_up),
        ).run()

    def _result(self, outcome: Coroutine[Any, Any, Outcome[Chunk, Reply]]) -> Outcome[Chunk, Reply]:
        """Waits for the outcome, at most LAST_SECONDS once the run is to stop."""
        future, until = self._http.start(outcome), float("inf")
        faults.point(f"scoring:{self._role.value}")
        while not concurrent.futures.wait([future], POLL_SECONDS).done:
            if self._roster.stopping:
                until = min(until, time.monotonic() + LAST_SECONDS)
            if time.monotonic() > until:
                future.cancel()
                raise Stopped(f"stopped while the {self._role.value} was scoring")
        result: Outcome[Chunk, Reply] = future.result()
        return result


@dataclass(frozen=True)
class _ChunkClient:
    """Posts chunks of a batch, and checks the array of each reply. Implements `Client`."""

    http: HttpClient
    route: str
    sequences: Sequences
    array: str
    rows: Sequence[Any] | None
    header: Mapping[str, Any]

    async def ask(self, member: Member, chunk: Chunk, _progress: Callable[[], None]) -> Reply:
        part = self.sequences.select(torch.tensor(chunk))
        rows = None if self.rows is None else [self.rows[i] for i in chunk]
        body = encode(*pack(part, rows, **self.header), compress=True)
        arrays, told = decode(await self._post(member, body))
        values = arrays.get(self.array)
        expected = [len(places(self.array, part, torch.arange(len(part))))]
        if values is None or values.dtype != torch.float32 or list(values.shape) != expected:
            got = "nothing" if values is None else f"{values.dtype} {list(values.shape)}"
            raise Failed(f"the reply's {self.array} are float32 {expected}, not {got}")
        # NaN marks a response without a score; log-probabilities are never NaN.
        if bool(values.isinf().any()) or (self.array == "logprobs" and bool(values.isnan().any())):
            raise Failed(f"the reply's {self.array} are not finite")
        return values, told

    async def listens(self, member: Member) -> bool:
        return await self.http.listens(member.address)

    async def _post(self, member: Member, body: bytes) -> bytes:
        try:
            return await self.http.post_bytes(member.address + self.route, body)
        except HttpError as error:
            if error.status == 422:
                where, _, message = error.body.partition(": ")
                raise InvalidJob([Problem(where, message or error.body)]) from None
            if error.status != 500:  # of the member's work; other ones are a gateway's, or of the request
                raise
            await asyncio.sleep(PAUSE_SECONDS)
            raise Failed(error.body) from None

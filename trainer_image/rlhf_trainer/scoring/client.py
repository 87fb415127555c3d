"""The trainer's side of reward and reference: a batch is spread over the members, and outlives them."""

import asyncio
import logging
import time
from typing import Any

import aiohttp
import torch
from torch import Tensor

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import Member

from ..comms.http import Background, HttpError
from ..comms.roster import Roster
from ..comms.wire import decode, encode
from ..records import Sequences
from .messages import pack, split

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often members that are up may fail on a batch: asking on and on would not help."""
PAUSE_SECONDS = 1.0


class Scorer:
    """Asks the members of a role; while none answers, waits for a replacement until a deadline."""

    def __init__(
        self, role: Role, route: str, *, http: Background, roster: Roster, timeout: float, patience: float
    ) -> None:
        """`timeout`: seconds that one batch may take; `patience`: seconds to wait for a member that answers."""
        self._role, self._route = role, route
        self._http, self._roster = http, roster
        self._timeout, self._patience = timeout, patience

    def ask(self, sequences: Sequences, array: str, rows: list[Any] | None = None, **header: Any) -> Tensor:
        """The named array of the answer, over all sequences in their order.

        Raises:
            InvalidJob: the role says that the job itself is at fault.
            Unavailable: nobody answered in time.
            RuntimeError: the role answered with errors of its own, ATTEMPTS times.
        """
        failures = 0
        deadline = time.monotonic() + self._timeout + self._patience
        while True:
            members = self._roster.wait(self._role, 1, self._patience)
            try:
                return self._http.run(self._ask_all(members, sequences, array, rows, header))
            except (aiohttp.ClientError, TimeoutError, HttpError) as error:
                self._raise_if_permanent(error)
                if isinstance(error, HttpError) and (failures := failures + 1) == ATTEMPTS:
                    raise RuntimeError(
                        f"the {self._role.value} failed {failures} times on one batch: {error.body}; see its log"
                    ) from error
                if time.monotonic() > deadline:
                    raise
                log.warning("%s did not answer (%r); asking again", self._role.value, error)
                time.sleep(PAUSE_SECONDS)

    async def _ask_all(
        self,
        members: list[Member],
        sequences: Sequences,
        array: str,
        rows: list[Any] | None,
        header: dict[str, Any],
    ) -> Tensor:
        parts = split(len(sequences), len(members))

        async def one(member: Member, part: range) -> Tensor:
            more = {} if rows is None else {"rows": [rows[i] for i in part]}
            message = pack(sequences.select(torch.tensor(part)), **more, **header)
            answer = await self._http.post_bytes(
                member.address + self._route, encode(*message, compress=True), timeout=self._timeout
            )
            return decode(answer)[0][array]

        return torch.cat(await asyncio.gather(*map(one, members, parts)))

    def _raise_if_permanent(self, error: Exception) -> None:
        if isinstance(error, HttpError) and error.status == 422:
            where, _, message = error.body.partition(": ")
            raise InvalidJob([Problem(where, message or error.body)]) from None

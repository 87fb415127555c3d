"""HTTP client of a host for its roles: health checks, trainer status, membership, stop requests."""

from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from rlhf_api.contract.proof import PROOF_BYTES, key_of, new_nonce, question
from rlhf_api.contract.report import TrainerStatus
from rlhf_api.contract.run import (
    CONTROL_CHECKPOINT,
    CONTROL_MEMBERS,
    CONTROL_STATUS,
    CONTROL_STOP,
    Membership,
)
from rlhf_api.errors.messages import from_pydantic
from rlhf_api.roles import HEALTH, LIVE_TIMEOUT_SECONDS

_TIMEOUT_SECONDS = 1.5
_MOST_BYTES = 256 << 10
"""Maximum size of a report in bytes; compressed ones are refused."""


class Unreadable(RuntimeError):
    """The trainer's reply is invalid; the message describes how."""


class WrongToken(Unreadable):
    """The trainer has another token."""


class ControlClient:
    """One job's HTTP session for all roles; a timeout is an ordinary result, not an error.

    The job's containers are not trusted: redirects are not followed, and replies are bounded. Nor is whoever answers
    at their addresses: each request but health checks is preceded by one for a proof of the job's token.
    """

    def __init__(
        self, token: str, connector: aiohttp.BaseConnector | None = None, *, bare: bool = False
    ) -> None:
        """`connector`: connection pool shared by several jobs, owned by the caller. `bare`: requests carry the token
        itself, as trainers of release 0.1.0 want it, whose address nobody else can take."""
        self._token, self._bare = token, bare
        self._session = aiohttp.ClientSession(
            connector=connector,
            connector_owner=connector is None,
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def healthy(self, address: str) -> bool:
        return _succeeds(await self._send("GET", address + HEALTH))

    async def lives(self, url: str) -> bool:
        """Calls a server's liveness path, for which it may query its workers."""
        timeout = aiohttp.ClientTimeout(total=LIVE_TIMEOUT_SECONDS)
        return _succeeds(await self._send("GET", url, timeout=timeout))

    async def status(self, address: str) -> TrainerStatus | None:
        """The trainer's status; None if it does not reply.

        Raises:
            WrongToken: the trainer has another token, or another process its port.
            Unreadable: the reply is not a TrainerStatus.
        """
        reply = await self._ask("GET", address, CONTROL_STATUS, most=_MOST_BYTES)
        if reply is not None and reply[0] == 401:
            raise WrongToken("the trainer refuses the job's token")
        if reply is None or not _succeeds(reply):
            return None
        try:
            return TrainerStatus.model_validate_json(reply[1])
        except ValidationError as error:
            problem = from_pydantic(error, TrainerStatus).problems[0]
            raise Unreadable(f"the trainer's status is unreadable: {problem}") from None

    async def members(self, address: str, membership: Membership) -> bool:
        """Pushes the membership; true if the trainer accepted it."""
        body = membership.model_dump_json(by_alias=True)
        return await self._order("PUT", address, CONTROL_MEMBERS, body)

    async def stop(self, address: str) -> bool:
        """Requests a checkpoint and exit; true if the trainer accepted."""
        return await self._order("POST", address, CONTROL_STOP)

    async def checkpoint(self, address: str) -> bool:
        """Requests a checkpoint; true if the trainer accepted."""
        return await self._order("POST", address, CONTROL_CHECKPOINT)

    async def _order(self, method: str, address: str, path: str, body: str | None = None) -> bool:
        try:
            return _succeeds(await self._ask(method, address, path, body))
        except Unreadable:
            return False

    async def _ask(
        self, method: str, address: str, path: str, body: str | None = None, *, most: int = 0
    ) -> tuple[int, bytes] | None:
        """As `_send`, with the key of whoever answers at the address. Raises WrongToken if they cannot have one."""
        key = self._token if self._bare else await self._key(address)
        return None if key is None else await self._send(method, address + path, body, key=key, most=most)

    async def _key(self, address: str) -> str | None:
        reply = await self._send("GET", question(address, nonce := new_nonce()), most=PROOF_BYTES)
        if reply is None or reply[0] >= 500:
            return None
        if (key := key_of(self._token, address, nonce, reply[1])) is None:
            raise WrongToken(f"what answers at {address} does not have the job's token")
        return key

    async def _send(
        self,
        method: str,
        url: str,
        body: str | None = None,
        *,
        key: str = "",
        most: int = 0,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> tuple[int, bytes] | None:
        """Status and body of the reply, None without one; the body of a successful one is read if `most` is above 0, up
        to that many bytes."""
        headers = {"Content-Type": "application/json"} if body else {}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=timeout or self._session.timeout,
            ) as response:
                body_limit = most if 200 <= response.status < 300 else 0
                return response.status, await _bounded(response.content, body_limit) if body_limit else b""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


def _succeeds(reply: tuple[int, bytes] | None) -> bool:
    return reply is not None and 200 <= reply[0] < 300


async def _bounded(stream: aiohttp.StreamReader, most: int) -> bytes:
    answer = bytearray()
    async for chunk in stream.iter_any():
        answer += chunk
        if len(answer) > most:
            raise Unreadable(f"a report has at most {most >> 10} KiB; the trainer's is longer")
    return bytes(answer)

"""HTTP client of a host for its roles: health checks, trainer status, membership, stop requests."""

from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

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

    The job's containers are not trusted: redirects are not followed, and replies are bounded.
    """

    def __init__(self, token: str, connector: aiohttp.BaseConnector | None = None) -> None:
        """`connector`: connection pool shared by several jobs, owned by the caller."""
        self._session = aiohttp.ClientSession(
            connector=connector,
            connector_owner=connector is None,
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
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
        return await self._request("GET", address + HEALTH) is not None

    async def lives(self, url: str) -> bool:
        """Calls a server's liveness path, for which it may query its workers."""
        timeout = aiohttp.ClientTimeout(total=LIVE_TIMEOUT_SECONDS)
        return await self._request("GET", url, timeout=timeout) is not None

    async def status(self, address: str) -> TrainerStatus | None:
        """The trainer's status; None if it does not reply.

        Raises:
            WrongToken: the trainer has another token.
            Unreadable: the reply is not a TrainerStatus.
        """
        body = await self._request("GET", address + CONTROL_STATUS, most=_MOST_BYTES)
        if body is None:
            return None
        try:
            return TrainerStatus.model_validate_json(body)
        except ValidationError as error:
            problem = from_pydantic(error, TrainerStatus).problems[0]
            raise Unreadable(f"the trainer's status is unreadable: {problem}") from None

    async def members(self, address: str, membership: Membership) -> bool:
        """Pushes the membership; true if the trainer accepted it."""
        body = membership.model_dump_json(by_alias=True)
        return await self._request("PUT", address + CONTROL_MEMBERS, body) is not None

    async def stop(self, address: str) -> bool:
        """Requests a checkpoint and exit; true if the trainer accepted."""
        return await self._request("POST", address + CONTROL_STOP) is not None

    async def checkpoint(self, address: str) -> bool:
        """Requests a checkpoint; true if the trainer accepted."""
        return await self._request("POST", address + CONTROL_CHECKPOINT) is not None

    async def _request(
        self,
        method: str,
        url: str,
        body: str | None = None,
        *,
        most: int = 0,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> bytes | None:
        """Body of a successful reply; it is read only if `most` is above 0, up to that many bytes."""
        headers = {"Content-Type": "application/json"} if body else None
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=timeout or self._session.timeout,
            ) as response:
                if response.status == 401 and most:
                    raise WrongToken("the trainer refuses the job's token")
                if not 200 <= response.status < 300:
                    return None
                return await _bounded(response.content, most) if most else b""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


async def _bounded(stream: aiohttp.StreamReader, most: int) -> bytes:
    answer = bytearray()
    async for chunk in stream.iter_any():
        answer += chunk
        if len(answer) > most:
            raise Unreadable(f"a report has at most {most >> 10} KiB; the trainer's is longer")
    return bytes(answer)

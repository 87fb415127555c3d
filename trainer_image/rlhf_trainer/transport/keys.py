"""Keys of the trainer's requests: a server proves that it has the job's token before it gets one."""

import asyncio

import aiohttp

from rlhf_api.contract.proof import PROOF_BYTES, key_of, new_nonce, question
from rlhf_api.roles import HEALTH

from .replies import read_start


class Unproven(aiohttp.ClientError):
    """A process of another job, or a stranger, answers at an address."""


class Keys:
    """aiohttp client middleware: asks the server for a proof before each request but health checks, and sends its key
    with it: another process may have taken its place since the last one. Requests that wait at once share a proof."""

    def __init__(self, token: str, timeout: aiohttp.ClientTimeout) -> None:
        """`timeout`: of a proof."""
        self._token, self._timeout = token, timeout
        self._proofs: dict[str, asyncio.Task[str]] = {}
        """The last one of each server."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.url.path == HEALTH:
            return await handler(request)
        response = await self._send(request, handler)
        if response.status != 401:
            return response
        response.close()  # by a process that has started since the proof
        return await self._send(request, handler)

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        server = str(request.url.origin())
        proof = self._proofs.get(server)
        if proof is None or proof.done():
            proof = self._proofs[server] = asyncio.create_task(self._prove(request.session, server))
        request.headers["Authorization"] = f"Bearer {await asyncio.shield(proof)}"
        return await handler(request)

    async def _prove(self, session: aiohttp.ClientSession, server: str) -> str:
        nonce = new_nonce()
        challenge = session.get(
            question(server, nonce), middlewares=(), timeout=self._timeout, allow_redirects=False
        )
        async with challenge as response:
            answer = await read_start(response, PROOF_BYTES) if response.status == 200 else b""
        key = key_of(self._token, server, nonce, answer)
        if key is None:
            raise Unproven(
                f"{server}: what answers there does not have the job's token: another process has its port"
            )
        return key

"""A stand-in for a process of a job proves, as that does, that it has the job's token."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rlhf_api.contract.proof import PROOF, Prover, new_nonce


def proving(token_at: Callable[[str], str]) -> Any:
    """aiohttp middleware of a server, which does not look at the keys of requests; `token_at`: the token of the process
    that has an address of this machine."""
    nonce = new_nonce()

    @web.middleware
    async def answer(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path != PROOF:
            return await handler(request)
        assert request.transport is not None
        host, port = request.transport.get_extra_info("sockname")[:2]
        return web.Response(text=Prover(token_at(host), host, port, nonce).answer(request.query["nonce"]))

    return answer


def proving_by(token: str) -> Any:
    return proving(lambda _host: token)

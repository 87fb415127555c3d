"""Servers that stream responses as our extension of vLLM does, and fail when told to."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from tests.support.proving import proving_by

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_trainer.dispatch.control import healthy
from rlhf_trainer.transport.frames import GENERATE, Kind, encode, encode_error
from rlhf_trainer.transport.http import HttpClient

IN_STREAM = -1
"""A `status` that is told after the reply has begun."""


class Generator:
    """A server of responses; `fails` says from which request on it fails, and how.

    A response to a prompt that begins with token t is (t, k) for choice k, each token a frame of its own.
    """

    def __init__(self, http: HttpClient, name: str, *, fails: int | None = None, status: int = 500) -> None:
        self.asked: list[dict] = []
        self.finish_reason: Kind | None = Kind.STOP
        """None: the stream ends without a word of it."""
        self.version = 0
        self.open = threading.Event()  # the door for responses
        self.open.set()
        self.stuck: set[int] = set()
        """Prompts, by their first token, of which nothing comes after the first frame."""
        self.slow: dict[int, list[float]] = {}
        """By the first token of the prompt: seconds before each frame."""
        self.wait: Callable[[int, float], Awaitable[None]] = lambda _first, seconds: asyncio.sleep(seconds)
        self.given_up: list[int] = []
        """The first tokens of prompts whose requests were cancelled."""
        self.highest = self.now = 0
        self._fails, self._status, self._http = fails, status, http
        self._runner = http.run(self._start())
        port = self._runner.addresses[0][1]
        self.member = Member(role=Role.GENERATOR, name=name, uid=name, address=f"http://127.0.0.1:{port}")

    async def _start(self) -> web.AppRunner:
        app = web.Application(middlewares=[proving_by("token")])
        app.add_routes([web.get("/health", healthy), web.post(GENERATE, self._respond)])
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.now += 1
        self.highest = max(self.highest, self.now)
        try:
            failing = self._fails is not None and len(self.asked) > self._fails
            if failing and self._status > 0:
                return web.json_response({"error": "no"}, status=self._status)
            response = web.StreamResponse()
            await response.prepare(request)
            while not self.open.is_set():
                await asyncio.sleep(0.01)
            await self._stream(response, body, failing)
            return response
        except asyncio.CancelledError:
            self.given_up.append(body["prompt"][0])
            raise
        finally:
            self.now -= 1

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], failing: bool) -> None:
        first, pauses = body["prompt"][0], iter(self.slow.get(body["prompt"][0], ()))
        for place in range(2):
            for k in reversed(range(body["n"])):
                await self.wait(first, next(pauses, 0))
                reason = self.finish_reason if place else Kind.TOKENS
                await send(response, k, [k if place else first], reason or Kind.TOKENS, self.version)
            if failing and self._status == 0:  # dies in the middle of a response
                self._transport(response).close()
                return None
            if failing:
                return await response.write(encode_error(500, "engine died"))
            while first in self.stuck:
                await asyncio.sleep(0.01)
        return None

    @staticmethod
    def _transport(response: web.StreamResponse) -> asyncio.Transport:
        transport = response._req.transport
        assert transport is not None
        return transport

    def stop_listening(self) -> None:
        """No new connections; those that there are stay open."""
        (site,) = self._runner.sites
        self._http.run(site.stop())

    def stop(self) -> None:
        self._http.run(self._runner.cleanup())


async def send(
    response: web.StreamResponse, number: int, tokens: list[int], kind: Kind = Kind.TOKENS, version: int = 0
) -> None:
    """A frame, with log-probabilities of -0.5 a token."""
    await response.write(encode(number, kind, version, tokens, [-0.5] * len(tokens)))

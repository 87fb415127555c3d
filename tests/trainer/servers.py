"""Servers that speak vLLM's completions, and fail when told to."""

import asyncio
import json
import threading

from aiohttp import web

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_trainer.comms.control import healthy
from rlhf_trainer.comms.http import Background

CHOICE = {
    "index": 0,
    "token_ids": [5, 6],
    "logprobs": {"token_logprobs": [-0.5, -1.5]},
    "finish_reason": "stop",
}


class Generator:
    """A server that speaks vLLM's completions; `fails` says from which request on it fails, and how."""

    def __init__(self, http: Background, name: str, *, fails: int | None = None, status: int = 500) -> None:
        self.asked: list[dict] = []
        self.finish_reason = "stop"
        self.open = threading.Event()  # the door for answers
        self.open.set()
        self.highest = self._now = 0
        self._fails, self._status, self._http = fails, status, http
        self._lock = threading.Lock()
        self._runner = http.run(self._start())
        port = self._runner.addresses[0][1]
        self.member = Member(role=Role.GENERATOR, name=name, uid=name, address=f"http://127.0.0.1:{port}")

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/health", healthy), web.post("/v1/completions", self._answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self._now += 1
        self.highest = max(self.highest, self._now)
        try:
            if self._fails is not None and len(self.asked) > self._fails:
                if self._status == 0:  # dies in the middle of an answer
                    request.transport.close()
                    return web.Response()
                return web.json_response({"error": "no"}, status=self._status)
            while not self.open.is_set():
                await asyncio.sleep(0.01)
            first, reason = body["prompt"][0], {"finish_reason": self.finish_reason}
            choices = [CHOICE | reason | {"index": k, "token_ids": [first, k]} for k in range(body["n"])]
            return web.Response(text=json.dumps({"choices": choices[::-1]}), content_type="application/json")
        finally:
            self._now -= 1

    def stop_listening(self) -> None:
        """No new connections; those that there are stay open."""
        (site,) = self._runner.sites
        self._http.run(site.stop())

    def stop(self) -> None:
        self._http.run(self._runner.cleanup())

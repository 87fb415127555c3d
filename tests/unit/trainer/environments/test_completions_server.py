"""The OpenAI API of a program's conversation: clients that wait, and clients that lose their connection."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from rlhf_trainer.environments.program import server as module
from rlhf_trainer.environments.program.conversation import Conversation
from rlhf_trainer.environments.program.server import Access, CompletionsServer
from rlhf_trainer.environments.turn_text import TurnText

ASKS = {"messages": [{"role": "user", "content": "Begin."}]}


async def post(access: Access, body: dict[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {access.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{access.url}/chat/completions", json=body) as reply,
    ):
        return await reply.text()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_waits_gets_signs_of_life_that_are_no_part_of_the_reply(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    async def play() -> str:
        conversation = Conversation()
        async with CompletionsServer() as server, server.serving(conversation) as access:
            asking = asyncio.ensure_future(post(access, {**ASKS, "stream": stream}))
            await conversation.next()
            await asyncio.sleep(0.1)
            conversation.reply(TurnText("Go.", "Go."))
            return await asking

    text = asyncio.run(asyncio.wait_for(play(), 60))
    if stream:
        assert text.startswith(": waiting\n\n")
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert json.loads(events[0])["choices"][0]["delta"] == {"role": "assistant", "content": "Go."}
        assert events[-1] == "[DONE]"
    else:
        assert text.startswith("\n")
        assert json.loads(text)["choices"][0]["message"] == {"role": "assistant", "content": "Go."}


def test_a_request_beside_one_that_waits_is_refused_and_that_one_is_answered() -> None:
    async def play() -> tuple[str, str]:
        conversation = Conversation()
        async with CompletionsServer() as server, server.serving(conversation) as access:
            asking = asyncio.ensure_future(post(access, ASKS))
            await conversation.next()
            refused = await post(access, ASKS)
            conversation.reply(TurnText("Go.", "Go."))
            return refused, await asking

    refused, answered = asyncio.run(asyncio.wait_for(play(), 60))
    assert "ask one after another" in json.loads(refused)["error"]["message"]
    assert json.loads(answered)["choices"][0]["message"]["content"] == "Go."


def test_a_client_that_lost_its_connection_asks_again_and_gets_the_same_turn() -> None:
    async def play() -> str:
        conversation = Conversation()
        async with CompletionsServer() as server, server.serving(conversation) as access:
            asking = asyncio.ensure_future(post(access, ASKS))
            pending = await conversation.next()
            asking.cancel()
            while pending.is_open:
                await asyncio.sleep(0.01)
            again = asyncio.ensure_future(post(access, ASKS))
            while not pending.is_open:
                await asyncio.sleep(0.01)
            conversation.reply(TurnText("Go.", "Go."))
            return await again

    assert json.loads(asyncio.run(asyncio.wait_for(play(), 60)))["choices"][0]["message"]["content"] == "Go."

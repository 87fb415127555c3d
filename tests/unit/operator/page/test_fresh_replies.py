"""Replies of the API server serve other requests while they are fresh, and are asked for again later."""

import asyncio

import pytest

from rlhf_operator.page.cluster import fresh_replies
from rlhf_operator.page.cluster.fresh_replies import FreshReplies
from rlhf_operator.page.refusal import Refusal


class Server:
    """Replies with how often it was asked."""

    def __init__(self) -> None:
        self.asked, self.refuses = 0, False

    async def ask(self, key: str) -> str:
        self.asked += 1
        if self.refuses:
            raise Refusal(404, "no such job")
        return f"{key}{self.asked}"


def test_a_reply_serves_while_it_is_fresh_and_a_full_table_starts_anew(monkeypatch):
    async def ask() -> list[str]:
        return [await replies.get(key, server.ask) for key in ("a", "a", "b", "c", "a")]

    server, replies = Server(), FreshReplies[str, str](2)
    monkeypatch.setattr(fresh_replies, "FRESH_SECONDS", float("inf"))
    assert asyncio.run(ask()) == ["a1", "a1", "b2", "c3", "a4"]
    monkeypatch.setattr(fresh_replies, "FRESH_SECONDS", -1.0)
    assert asyncio.run(replies.get("a", server.ask)) == "a5"


def test_no_old_reply_serves_after_a_refusal(monkeypatch):
    server, replies = Server(), FreshReplies[str, str](2)
    asyncio.run(replies.get("a", server.ask))
    monkeypatch.setattr(fresh_replies, "FRESH_SECONDS", -1.0)
    server.refuses = True
    with pytest.raises(Refusal):
        asyncio.run(replies.get("a", server.ask))
    monkeypatch.setattr(fresh_replies, "FRESH_SECONDS", float("inf"))
    server.refuses = False
    assert asyncio.run(replies.get("a", server.ask)) == "a3"

"""A store on Google Cloud, which compares generations of an object, and no entity tags."""

from collections.abc import Iterator

import pytest
from tests.support.servers.google import BUCKET, Google, google

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.errors import Conflict, UnusableStore
from rlhf_store.retention import Retention
from rlhf_store.store import Store

URL = f"gs://{BUCKET}/ppo"


@pytest.fixture(autouse=True)
def server(monkeypatch) -> Iterator[Google]:
    with google() as store_server:
        for name, value in store_server.environment.items():
            monkeypatch.setenv(name, value)
        yield store_server


def test_it_can_be_written_and_has_conditional_writes(server):
    store = Store(URL)
    store.check_writable()
    assert store.conditional
    assert not server.objects


def test_only_the_version_that_was_read_is_replaced():
    store = Store(URL)
    first = store.swap("LATEST", b"1", None)
    second = store.swap("LATEST", b"2", store.read("LATEST"))
    for known in (None, first):
        with pytest.raises(Conflict):
            store.swap("LATEST", b"3", known)
    store.swap("LATEST", b"3", second)
    assert store.get("LATEST") == b"3"


def test_who_was_taken_over_cannot_commit():
    earlier = Committer.take_over(Archive(URL), Retention(last=1))
    earlier.commit(1, {}, {}, {})
    later = Committer.take_over(Archive(URL), Retention(last=1))
    with pytest.raises(UnusableStore, match="another trainer has taken over"):
        earlier.commit(2, {}, {}, {})
    later.commit(2, {}, {}, {})
    assert [entry.step for entry in Archive(URL).entries()] == [2]
    Committer.take_over(Archive(URL), Retention(last=1))
    assert Archive(URL).garbage() == []

"""An S3 server of which single requests fail, or that lacks what others have."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.support.servers.faulty_s3 import FaultyS3, faulty

from rlhf_store import store as module
from rlhf_store.errors import Conflict
from rlhf_store.store import Store, StoreOptions

PATIENCE = timedelta(seconds=120)


@pytest.fixture
def server(seaweed, monkeypatch) -> Iterator[FaultyS3]:
    with faulty(seaweed) as store_server:
        address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{store_server.server_port}"}
        for name, value in (seaweed.environment | address).items():
            monkeypatch.setenv(name, value)
        yield store_server


@pytest.fixture
def store(server: FaultyS3, tmp_path) -> Store:  # noqa: ARG001
    return Store(f"s3://checkpoints/{tmp_path.name}", StoreOptions(PATIENCE))


def test_a_server_that_refuses_conditional_writes_is_one_without_them(server, store):
    """Backblaze's and Google's S3 answer 501 to a header that they do not know."""
    conditional = ("If-None-Match", "If-Match")
    server.fault = lambda request: 501 if any(name in request.headers for name in conditional) else None
    store.check_writable()
    assert not store.conditional
    assert store.list("") == []
    first = store.swap("LATEST", b"1", None)
    store.put_new("cuts/1", b"cut")
    assert store.swap("LATEST", b"2", first).data == store.get("LATEST") == b"2"


def test_a_gateway_that_tells_no_version_of_what_is_read_is_one_without_conditional_writes(server, store):
    """A proxy that compresses leaves out the ETag: the next trainer could not take the store over."""
    server.hidden = {("Etag", "GET")}
    store.check_writable()
    assert not store.conditional
    store.swap("LATEST", b"1", None)
    assert store.swap("LATEST", b"2", store.read("LATEST")).data == store.get("LATEST") == b"2"


def test_a_server_with_versions_has_conditional_writes(store):
    store.check_writable()
    assert store.conditional
    store.swap("LATEST", b"1", None)
    known = store.read("LATEST")
    store.swap("LATEST", b"2", known)
    with pytest.raises(Conflict):
        store.swap("LATEST", b"3", known)


def test_an_object_too_large_for_one_request_is_read_in_parts(server, store, monkeypatch):
    """A request has a deadline: over a slow link it ends before the 4 GB of a large embedding are there."""
    data = bytes(range(256)) * 9000
    store.put("segments/large", data)
    monkeypatch.setattr(module, "READ_BYTES", 1 << 20)
    server.longest = 1 << 20
    assert store.get("segments/large", len(data)) == data

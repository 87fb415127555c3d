"""The places where checkpoints are tried: a directory, and a real S3 server."""

from collections.abc import Iterator
from dataclasses import dataclass

import obstore
import pytest
from obstore.store import ObjectStore, from_url
from tests.support.seaweed import Seaweed, running

from rlhf_trainer.checkpoint.cuts import Cuts


@dataclass(frozen=True)
class Place:
    """One run's cuts, and what lies in their store as anyone else sees it."""

    cuts: Cuts
    raw: ObjectStore

    def keys(self, prefix: str) -> set[str]:
        return {meta["path"] for meta in obstore.list(self.raw, prefix).collect()}

    def damage(self, key: str) -> None:
        """One byte in the middle is another."""
        data = bytearray(obstore.get(self.raw, key).bytes())
        data[len(data) // 2] ^= 1
        obstore.put(self.raw, key, bytes(data))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory) -> Iterator[Seaweed]:
    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path, monkeypatch) -> Place:
    if request.param == "file":
        url, options = f"file://{tmp_path / 'checkpoints'}", {}
    else:
        server: Seaweed = request.getfixturevalue("seaweed")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url, options = server.url(tmp_path.name), {"client_options": {"allow_http": True}}
    return Place(Cuts(url), from_url(url, **options))

"""A store in which nothing can be read is not taken for a new one, which a trainer would begin by deleting it."""

import json

import obstore
import pytest
from tests.checkpoint.conftest import Place

from rlhf_api.problems import InvalidJob
from rlhf_store.manifest import digest_of


@pytest.fixture
def written(place: Place) -> Place:
    trainer = place.trainer()
    for step in (1, 2):
        trainer.save(step)
    return place


def test_every_manifest_and_the_root_are_damaged(written: Place):
    for key in ("LATEST", *written.keys("cuts")):
        written.damage(key)
    before = written.keys("")
    with pytest.raises(
        InvalidJob, match=r"store: every checkpoint in .* is damaged .*begin a new run in another store"
    ):
        written.trainer()
    assert written.keys("") == before


def test_a_later_release_has_written_it(written: Place):
    content = json.loads(bytes(obstore.get(written.raw, "LATEST").bytes())) | {"format": 3}
    del content["sha256"]
    content["sha256"] = digest_of(json.dumps(content, sort_keys=True).encode())
    obstore.put(written.raw, "LATEST", json.dumps(content).encode())
    before = written.keys("")
    with pytest.raises(InvalidJob, match=r"LATEST there has format 3, this release 2; go on with the one"):
        written.trainer()
    assert written.keys("") == before

"""Copies of jobs' records that a cluster's page has read: one by viewer, deleted when it is not used any more."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import fill_store
from tests.unit.operator.page.test_stores import blobs

from rlhf_operator.page.cluster import job_run, readers
from rlhf_operator.page.cluster.job_run import Grant
from rlhf_operator.page.cluster.keys import Access
from rlhf_operator.page.cluster.readers import Readers
from rlhf_operator.page.open_archive import open_archive
from rlhf_operator.page.refusal import Refusal

ID = "0123456789abcdef"
BODY: dict[str, Any] = {
    "metadata": {"name": "job", "namespace": "team"},
    "spec": {"algorithm": "grpo", "env": {"API_TOKEN": "hunter2hunter2"}},
    "status": {"phase": "Running", "totalSteps": 40, "step": 3},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grant:
    """A job whose store is a folder here, in place of a bucket with keys."""
    url = fill_store(tmp_path / "store", blobs(3))
    monkeypatch.setattr(job_run, "open_archive", lambda url, _keys: open_archive(url))
    return Grant(ID, b"alice", BODY, Access(url, {}))


def ask(folder: Path, *grants: Grant, rest: str = "samples") -> list[dict[str, Any]]:
    async def act() -> list[dict[str, Any]]:
        reading = Readers(folder)
        try:
            return [await reading.answer([grant], f"/runs/{ID}/{rest}".rstrip("/"), {}) for grant in grants]
        finally:
            reading.close()

    return asyncio.run(act())


def test_another_viewer_of_the_same_job_gets_nothing_of_what_one_has_read(folder, granted):
    other = granted._replace(owner=b"carol", access="you may not read Secret keys")
    alice, carol, again = ask(folder, granted, other, granted)
    assert (alice["count"], carol["count"], again["count"]) == (1, 0, 1)


def test_a_viewer_who_loses_the_keys_gets_nothing_any_more(folder, granted):
    before, after = ask(folder, granted, granted._replace(access="you may not read Secret keys"))
    assert (before["count"], after["count"]) == (1, 0)


def test_what_is_not_used_any_more_is_deleted(folder, granted, monkeypatch):
    async def act() -> list[list[Path]]:
        reading, there = Readers(folder), []
        try:
            for seconds in (600.0, -1.0):
                monkeypatch.setattr(readers, "UNUSED_SECONDS", seconds)
                assert (await reading.answer([granted], f"/runs/{ID}/samples", {}))["count"] == 1
                there.append([file for file in folder.rglob("*") if file.is_file()])
            return there
        finally:
            reading.close()

    during, after = asyncio.run(act())
    assert (bool(during), after) == (True, [])


def test_a_cluster_says_where_tokens_are_shown(folder, granted):
    spec = {**BODY["spec"], "checkpoint": {"store": "s3://bucket/a b"}}
    (page,) = ask(folder, grant := granted._replace(body={**BODY, "spec": spec}))
    with pytest.raises(Refusal, match="`rlhf ui 's3://bucket/a b'` shows them"):
        ask(folder, grant, rest=f"samples/{page['samples'][0]['id']}/tokens")


def test_a_cluster_reads_no_episode(folder, granted):
    assert ask(folder, granted, rest="episodes") == [{"steps": []}]
    with pytest.raises(Refusal, match="a cluster's page does not read"):
        ask(folder, granted, rest="episodes/1")


def test_secrets_of_a_job_are_not_in_its_manifest(folder, granted):
    (details,) = ask(folder, granted, rest="")
    assert "API_TOKEN" in details["manifest"]
    assert "hunter2" not in json.dumps(details)

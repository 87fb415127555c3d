"""Copies of jobs' records that a cluster's page has read: one by viewer, deleted when it is not used any more."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import fill_store
from tests.unit.operator.page.test_stores import blobs
from tests.unit.trainer.replay.made import LENGTHS, episode, with_replies
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from rlhf_api.contract import sample_tokens
from rlhf_operator.page.cluster import job_run, readers
from rlhf_operator.page.cluster.job_run import Grant, JobRun
from rlhf_operator.page.cluster.keys import Access
from rlhf_operator.page.cluster.readers import Readers
from rlhf_operator.page.open_archive import open_archive
from rlhf_operator.page.refusal import Refusal
from rlhf_trainer.replay.sample_tokens import encode_tokens
from rlhf_trainer.replay.samples import describe_samples
from rlhf_trainer.replay.table import encode
from rlhf_trainer.scoring.rewards import texts

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


def write_samples(store: Path, step: int) -> str:
    """A checkpoint with an episode, its samples and their tokens, as the trainer writes them; an environment replied
    in some, and the first token of all is a special one."""
    whole = with_replies(episode(step, trained=step))
    words = Tokenizer(models.WordLevel({f"w{id}": id for id in range(50_000)}, unk_token="w0"))
    first = int(whole.columns.sequences.row(0)[LENGTHS[0][0]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{first}")
    as_texts = partial(texts, tokenizer=tokenizer)
    lines = [each.model_dump_json() for each in describe_samples(step, whole, as_texts)]
    files = {
        f"episodes/{step:08d}.parquet": encode(whole, as_texts),
        "export/policy/tokenizer.json": words.to_str().encode(),
        sample_tokens.FILE: encode_tokens(whole, as_texts, tokenizer),
        "samples.jsonl": "".join(f"{line}\n" for line in lines).encode(),
    }
    return fill_store(store, files, step=step)


def test_a_cluster_has_the_tokens_of_samples_without_parquet(folder, granted, tmp_path, monkeypatch):
    granted = granted._replace(access=Access(write_samples(tmp_path / "store", 7), {}))
    read_all = lambda: [  # noqa: E731
        token
        for number in range(len(LENGTHS))
        for reply in ask(folder, granted, rest=f"samples/7.{number}/tokens")
        for token in reply["tokens"]
    ]
    from_json = read_all()
    monkeypatch.setattr(JobRun, "reads_episodes", True)
    from_episode = read_all()
    split = lambda tokens: [each.pop("text").strip() for each in tokens]  # noqa: E731
    assert split(from_json) == split(from_episode)
    assert len(from_json) == sum(answer for _, answer in LENGTHS)
    numbers = lambda tokens: [[each or 0.0 for each in token.values()] for token in tokens]  # noqa: E731
    for one, other in zip(numbers(from_json), numbers(from_episode), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("content", [None, b"[" * 100_000, b'{"responses": [{"prompt_id": "0/2+2"}]}'])
def test_a_cluster_says_where_other_tokens_are_shown(folder, granted, tmp_path, content):
    if content is not None:
        url = fill_store(tmp_path / "hostile", {**blobs(3), sample_tokens.FILE: content})
        granted = granted._replace(access=Access(url, {}))
    spec = {**BODY["spec"], "checkpoint": {"store": "s3://bucket/a b"}}
    (page,) = ask(folder, grant := granted._replace(body={**BODY, "spec": spec}))
    with pytest.raises(Refusal, match=r"no checkpoint has the tokens .* `rlhf ui 's3://bucket/a b'` shows"):
        ask(folder, grant, rest=f"samples/{page['samples'][0]['id']}/tokens")


def test_a_cluster_reads_no_episode(folder, granted):
    assert ask(folder, granted, rest="episodes") == [{"steps": []}]
    with pytest.raises(Refusal, match="a cluster's page does not read"):
        ask(folder, granted, rest="episodes/1")


def test_secrets_of_a_job_are_not_in_its_manifest(folder, granted):
    (details,) = ask(folder, granted, rest="")
    assert "API_TOKEN" in details["manifest"]
    assert "hunter2" not in json.dumps(details)

"""A hub that gives no answer is said before a process starts, within ten seconds, where a model is to be downloaded."""

import socket
from contextlib import closing

import pytest
from tests.support.servers.hub import Hub, hub
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import InvalidJob
from rlhf_operator.local.preflight import hub as local_hub
from rlhf_operator.local.preflight.hub import check_hub


def environ(folder, endpoint: str) -> dict[str, str]:
    return {"HOME": str(folder), "HF_ENDPOINT": endpoint}


def models(**named: str):
    return job(
        *(f"spec.model.{field}={name}" for field, name in named.items()), "spec.reward.functions=[]"
    ).spec


def test_a_hub_where_nobody_listens_is_named_with_every_model_and_the_remedies(tmp_path):
    with pytest.raises(InvalidJob) as error:
        check_hub(models(policy="org/a", reward="org/b"), environ(tmp_path, "http://127.0.0.1:1"))
    first, second = map(str, error.value.problems)
    assert first.startswith(
        "spec.model.policy: is not here, and the hub at http://127.0.0.1:1 gives no answer: "
    )
    assert "Connection refused" in first
    assert first.endswith(
        "; set HF_ENDPOINT to a mirror, or HF_HOME to a cache that has it, or name a folder with its files; got 'org/a'"
    )
    assert second.startswith("spec.model.reward: ")


def test_one_that_accepts_and_says_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(local_hub, "HUB_SECONDS", 0.2)
    silent = r"gives no answer: (it did not answer within 0.2 s|timed out)"
    with closing(socket.create_server(("127.0.0.1", 0))) as server, pytest.raises(InvalidJob, match=silent):
        check_hub(models(policy="org/a"), environ(tmp_path, f"http://127.0.0.1:{server.getsockname()[1]}"))


def test_any_answer_counts_and_folders_and_copies_need_none(tmp_path):
    with hub(Hub({})) as served:
        check_hub(models(policy="org/a"), environ(tmp_path, served.url))  # 404: its client says what is wrong
    nobody = environ(tmp_path, "http://127.0.0.1:1")
    check_hub(models(policy=str(tmp_path), reward=str(tmp_path)), nobody)
    copy = tmp_path / "cache" / "hub" / "models--org--a" / "snapshots" / "c0ffee" / "config.json"
    copy.parent.mkdir(parents=True)
    copy.touch()
    check_hub(models(policy="org/a", reward="org/a"), {**nobody, "HF_HOME": str(tmp_path / "cache")})

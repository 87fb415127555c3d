"""PPO's steps with replay: what a checkpoint gives back is exact, and every prompt is trained on once an epoch."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.replay.ppo_worker import CASES, SPREAD, STEPS, is_episode

from rlhf_api.contract.sample_tokens import FILE


def ran(folder: Path, world: int) -> list[dict[str, Any]]:
    """Runs the worker on every rank; returns the results by rank."""
    run_ranks(world, "tests.unit.trainer.replay.ppo_worker", str(folder), folder=folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    return ran(tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_a_checkpoint_is_exact(alone, case):
    """The same weights, figures, buffer and ledger, bit for bit; with an episode not trained on yet, too."""
    expected = alone[case]["whole"]
    for way in ("between", "pending"):
        resumed = alone[case][way]
        assert resumed["weights"] == expected["weights"], way
        assert resumed["blobs"] == expected["blobs"]
        assert resumed["state"] == expected["state"]
        rewards = [line["reward_mean"] for line in expected["lines"]]
        assert [line["reward_mean"] for line in resumed["lines"]] == rewards[-len(resumed["lines"]) :]


@pytest.mark.parametrize("case", CASES)
def test_every_prompt_is_trained_on_once_an_epoch(alone, case):
    """Five steps of four prompts: two epochs of ten."""
    for way in alone[case].values():
        ledger, ledgers = way["state"]["ledger"], way["ledgers"]
        assert ledger["issued"] == [[0, 20]]
        assert all(status["lost"] == 0 for status in ledgers)
        counts = (ledgers[-1]["epoch"], ledgers[-1]["issued"], ledgers[-1]["trained"])
        assert counts == (1, 10, 10)
        if case != "dynamic":
            assert ledger["trained"] == [[0, 20]]
            continue
        (((place, _),),) = ledger["dropped"].values()
        assert ledger["dropped"] == {"HTTP 400: too long": [[place, place + 1]]}, "a prompt that is refused"
        assert ledger["trained"] == [[0, place], [place + 1, 20]]
        assert ledgers[-1]["dropped"] == 1
        assert sum(ledger["requeued"].values()) == STEPS


def test_replayed_answers_change_the_weights_and_are_told(alone):
    weights = [alone[case]["whole"]["weights"] for case in CASES]
    assert len(set(weights)) == len(weights)
    plain, uniform = (alone[case]["whole"]["lines"] for case in ("plain", "uniform"))
    assert all("replay_share" not in line for line in plain)
    assert [line["replay_share"] for line in uniform] == [0.0, 0.5, 0.5, 0.5, 0.5]
    assert [line["replay_age"] for line in uniform[:2]] == [0.0, 1.0]
    assert all(1 <= line["replay_age"] <= 2 for line in uniform[2:])
    assert [line["staleness"] for line in uniform] == [0.0] * 5, "replayed tokens have an age of their own"
    assert len([*filter(is_episode, alone["prioritized"]["whole"]["blobs"])]) == STEPS, "-1 keeps them all"


def test_after_a_change_of_the_settings_no_step_loses_a_column(alone):
    """Columns that the checkpoint's pending episode lacks are computed; older episodes without them are not replayed,
    as there would be no old log-probabilities to clip against."""
    changed = alone["changed"]
    assert all("logprobs" in columns for columns in changed["columns"]), changed["columns"]
    assert changed["shares"] == [0.0, 0.5, 0.5]


def test_dynamic_compares_both_sides_before_the_policy_moves(alone):
    """On the step's first minibatch; its old log-probabilities are the generators' own."""
    lines = alone["dynamic"]["whole"]["lines"]
    assert any(line["logprob_difference"] > 0 for line in lines), (
        "two computations, which may agree bit for bit"
    )
    for line in lines:
        assert 0 <= line["logprob_difference"] < 1e-5
        assert line["ratio_outside_share"] == 0
        assert line["policy_update_kl"] > 1e-6, "the later ones meet a policy that has moved"


def test_two_ranks_hold_the_same(tmp_path):
    first, second = ran(tmp_path, 2)
    for case in SPREAD:
        one, other = first[case]["whole"], second[case]["whole"]
        assert one["weights"] == other["weights"]
        assert one["state"]["position"] == other["state"]["position"] == 20
        assert one["state"]["ledger"] == other["state"]["ledger"]
        assert one["blobs"].keys() - other["blobs"].keys() == {FILE}, "tokens of samples are the first rank's"
        assert one["blobs"] == {**other["blobs"], FILE: one["blobs"][FILE]}
        assert one["lines"][-1].get("replay_age") == other["lines"][-1].get("replay_age")

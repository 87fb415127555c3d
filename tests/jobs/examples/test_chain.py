"""The main job from start to end: real vLLM, real DeepSpeed, a reward model trained on pairs, and it learns."""

import json
import math
from pathlib import Path

import pytest
from tests.support.rlhf import SENTIMENT, lines, succeed
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_operator.archive.open_store import archive
from rlhf_operator.cli import main

REQUIRED = {
    *("step", "episode", "reward_mean", "kl_mean", "weight_version", "tokens", "seconds"),
    *("generate_seconds", "score_seconds", "train_seconds", "broadcast_seconds"),
}


def test_the_reward_model_orders_pairs(chain):
    assert sum(line["accuracy"] for line in chain.reward.steps[-10:]) / 10 > 0.9


def test_given_responses_are_evaluated_on_rows_that_were_held_out(chain):
    sft, reward = (lines(run.workdir / "evaluation.jsonl") for run in (chain.sft, chain.reward))
    assert [line["step"] for line in sft] == [0, 100, 200, 300]
    assert [line["count"] for line in sft] == [60] * 4
    assert sft[0]["loss"] > 2 * sft[-1]["loss"]
    assert [line["step"] for line in reward] == [0, 60, 120]
    assert reward[-1]["accuracy"] > 0.9
    snapshots = [(entry.step, entry.reward) for entry in archive(str(chain.reward.workdir)).entries()]
    best = min(reward[1:], key=lambda line: line["loss"])
    assert (best["step"], -best["loss"]) in snapshots, "checkpoint.keepBest goes by the loss"


def test_dpo_is_evaluated_against_its_reference(chain, tmp_path):
    pairs = chain.reward.workdir.parent / "pairs.jsonl"
    finished = succeed(
        SENTIMENT / "dpo.yaml",
        tmp_path / "dpo",
        chain.overrides[0],
        *("spec.steps=2", "spec.optimizer.warmupSteps=0"),
        f"spec.evaluation={{sets: [{{name: pairs, data: [{pairs}]}}], everySteps: 2}}",
    )
    before, after = lines(finished.workdir / "evaluation.jsonl")
    assert (before["step"], before["set"], after["step"]) == (0, "pairs", 2)
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert before["reward_margin"] == pytest.approx(0, abs=1e-3), "the reference is the policy at the start"
    assert after["loss"] < before["loss"]
    assert after["reward_margin"] > 0.002


def test_it_learns_by_a_judge_that_it_never_trained_on(ppo):
    judged = lines(ppo.workdir / "evaluation.jsonl")
    assert judged[0]["step"] == 0
    assert 0.35 < judged[0]["mean"] < 0.65, "about half of the answers are positive before PPO"
    assert judged[-1]["step"] <= 40
    assert judged[-1]["mean"] >= 0.85
    assert ppo.steps[-1]["reward_mean"] > ppo.steps[0]["reward_mean"]
    assert "\n    before: " in ppo.output, (
        "the end of the run shows a response of the first and the last evaluation"
    )


def test_every_step_has_its_line(ppo):
    assert [line["step"] for line in ppo.steps] == list(range(1, 41))
    assert all(line.keys() >= REQUIRED for line in ppo.steps)
    assert [line["weight_version"] for line in ppo.steps] == list(range(1, 41))


def test_vllm_and_the_trainer_agree_on_the_same_tokens(ppo):
    assert max(line["logprob_difference"] for line in ppo.steps) <= 1e-4
    assert max(line["ratio_outside_share"] for line in ppo.steps) == 0


def test_the_work_directory_holds_what_was_promised(ppo):
    assert (ppo.workdir / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert len([*(ppo.workdir / "tensorboard").iterdir()]) == 1
    assert {file.name for file in (ppo.workdir / "logs").glob("*.log")} == {
        f"{role}-0.log" for role in ("trainer", "generator", "reward", "reference")
    }
    card = (ppo.workdir / "policy" / "README.md").read_text()
    assert all(
        words in card for words in ("Trained by ppo for 40 steps.", "| kl_mean |", "| held_out | mean | 0 |")
    )
    assert (ppo.workdir / "policy" / "reward.png").exists()
    status = ppo.status
    assert (status["phase"], status["step"], status["weightVersion"]) == ("Succeeded", 40, 40)
    assert status["reward"] == float(f"{ppo.steps[-1]['reward_mean']:.4g}")  # what a column has room for
    token = "RLHF_TOKEN"
    assert token not in json.dumps(status)


def test_the_policy_loads_and_writes_reviews(ppo):
    tokenizer = AutoTokenizer.from_pretrained(ppo.workdir / "policy")
    model = AutoModelForCausalLM.from_pretrained(ppo.workdir / "policy")
    prompt = tokenizer("On Sunday my sister and I saw a western and", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    assert tokenizer.decode(answer[0], skip_special_tokens=True).endswith(".")


def test_the_plan_reads_the_rates_of_a_run(chain, ppo, capsys):
    folders = ("--measured", str(ppo.workdir), "--after", str(ppo.workdir))
    assert main(["plan", str(SENTIMENT / "ppo.yaml"), *chain.overrides, *folders]) == 0
    rows = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert {rows[phase][-1] for phase in ("generate", "train", "broadcast")} == {"+0%"}
    assert len(rows["score"]) == len(rows["step"]) == 3


def test_no_secret_is_written(ppo):
    for file in Path(ppo.workdir).rglob("*"):
        if file.is_file() and file.suffix in (".json", ".jsonl", ".log", ".end"):
            assert "Bearer" not in file.read_text(errors="replace"), file

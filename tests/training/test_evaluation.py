"""Evaluation by several sets: greedy, several responses to a prompt, and what cannot be judged."""

import math

import torch
from tests.training.running import RANKS, Job, low_tokens

from rlhf_api.rows import PromptRow
from rlhf_trainer.training.evaluation import evaluate, figures

ROWS = [PromptRow(prompt=f"held out {i}") for i in range(5)]
SETS = "{name: greedy, data: [a], temperature: 0}, {name: eight, data: [b], samples: 8}"


def test_each_set_is_sampled_as_it_says():
    job = Job("grpo", "", f"spec.evaluation={{function: 'a:b', sets: [{SETS}]}}")
    respond, held_out = job.task._collector.respond, {"greedy": ROWS, "eight": ROWS[:2]}
    greedy, eight = evaluate(job.ctx, held_out, respond, low_tokens)
    again, other = evaluate(job.ctx, held_out, respond, low_tokens)
    assert (greedy["set"], greedy["count"], eight["set"], eight["count"]) == ("greedy", 5, "eight", 16)
    assert greedy == again, "nothing is drawn"
    assert eight != other, "these are drawn each time"
    assert not any(name.startswith("best_of") for name in greedy)
    assert eight["mean"] <= eight["best_of_2"] <= eight["best_of_4"] <= eight["best_of_8"]
    assert [sample["prompt"] for sample in greedy["samples"]] == [row.prompt for row in ROWS[:4]]
    assert [sample["prompt"] for sample in eight["samples"]] == [row.prompt for row in ROWS[:2]]


def test_greedy_responses_are_of_the_likeliest_tokens():
    job = Job("grpo", "", "spec.evaluation={function: 'a:b', data: [a], temperature: 0}")
    sequences = []

    def judge(found, _rows):
        sequences.append(found)
        return torch.zeros(len(found))

    evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, judge)
    (found,) = sequences
    model = job.models["policy"].unwrapped.eval()
    for i, asked in enumerate(found.prompt_lengths.tolist()):
        tokens = found.row(i)
        with torch.no_grad():
            logits = model(tokens[None]).logits[0]
        assert logits[asked - 1 : -1].argmax(-1).tolist() == tokens[asked:].tolist()


def test_other_ranks_take_part_and_have_no_figures():
    job = Job("grpo", "", "spec.evaluation={function: 'a:b', data: [a]}")
    assert RANKS.first
    assert evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, None) == []


def test_what_has_no_score_is_left_out_of_the_figures():
    scores = torch.tensor([1.0, math.nan, 0.0, 0.0, 1.0, math.nan])
    groups = torch.tensor([0, 0, 0, 1, 1, 2])
    assert figures(scores, groups) == {"mean": 0.5, "count": 4, "best_of_2": 1.0}
    assert figures(scores[[1, 5]], groups[[1, 5]])["count"] == 0
    three = figures(torch.arange(3.0), torch.zeros(3, dtype=torch.int64))
    assert [name for name in three if name.startswith("best_of")] == ["best_of_2", "best_of_3"]

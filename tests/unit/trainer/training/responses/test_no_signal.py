"""Steps whose scores tell no response from another are counted, warned of, and end a job by a rule."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.replay.made import episode
from tests.unit.trainer.training.responses.test_dynamic import DYNAMIC, streamed
from tests.unit.trainer.training.responses.test_dynamic_sampling import make, same
from tests.unit.trainer.training.running import PAIRS, RANKS, Job, resumed_is_whole

from rlhf_api.contract.report import HealthStatus
from rlhf_api.contract.run import EXIT_UNHEALTHY
from rlhf_api.sections.data import Source
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.process.role import RoleEnd
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.training.monitor import Monitor
from rlhf_trainer.training.online_metrics import of_sources, of_thoughts

SHARE = "groups_without_spread_share"
STOPS = "spec.health={rules: [{metric: groups_without_spread_share, above: 0.99, steps: 4, action: fail}]}"


def monitored(job: Job, steps: int) -> list[HealthStatus]:
    """Reports of the health of a run of that many steps, as its host gets them."""
    reports = list[HealthStatus]()
    ctx: Any = SimpleNamespace(spec=job.spec, ranks=RANKS, report=lambda health: reports.append(health))
    saver: Any = SimpleNamespace(rollbacks=lambda: 0)
    monitor = Monitor(ctx, saver, begins=0)
    for step in range(steps):
        job.steps(step, step + 1)
        monitor.check(job.lines[-1], step + 1)
    return reports


def test_each_source_of_a_mixture_has_its_own_score_and_share(tmp_path):
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    for file in files:
        file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    rows = open_dataset([Source(path=str(file)) for file in files], "prompts")
    whole = episode(0, lengths=((1, 1),) * 4)
    columns = whole.columns.with_rows(
        scores=torch.tensor([1.0, 1.0, 0.0, 3.0]), position=torch.tensor([0, 0, 1, 1])
    )
    made = replace(whole, columns=columns, prompt_ids=("0/1", "0/1", "0/2", "0/2"))
    assert of_sources(made, rows) == {
        "source_0_reward_mean": 1.0,
        "source_0_without_spread_share": 1.0,
        "source_1_reward_mean": 1.5,
        "source_1_without_spread_share": 0.0,
    }
    assert of_sources(made, rows[:]) == {}, "of one source there is nothing to tell apart"


def test_responses_whose_thought_was_closed_are_counted():
    sequences = replace(episode(0, lengths=((1, 1), (2, 3))).columns.sequences, sampled=None)
    assert of_thoughts(sequences) == {"thoughts_cut_share": 0.0}
    closed = replace(sequences, sampled=torch.tensor([True, True, False, True]))
    assert of_thoughts(closed) == {"thoughts_cut_share": 0.5}


def every_other_prompt(_sequences: Sequences, rows: Any) -> torch.Tensor:
    """Responses to prompts of even numbers score the same, and differ for the others."""
    return torch.tensor([-1.0 if int(row["prompt"][1:]) % 2 == 0 else float(i) for i, row in enumerate(rows)])


def by_prompt(_sequences: Sequences, rows: Any) -> torch.Tensor:
    """Each prompt has a score of its own, whatever is responded to it."""
    return torch.tensor([float(row["prompt"][1:]) for row in rows])


@pytest.mark.parametrize("score", [same, by_prompt])
def test_a_reward_that_tells_no_response_from_another_warns_by_step_3(score):
    reports = monitored(Job("grpo", score=score), 4)
    assert [(report.step, report.reason, report.action) for report in reports] == [
        (3, "NoSignal", "warn"),
        (4, "NoSignal", "warn"),
    ]
    assert {report.since for report in reports} == {3}, "one event for the row of steps"
    assert reports[0].message.startswith("spec.health: no signal for 3 steps in step 3: ")


def test_a_teacher_is_a_signal_where_scores_are_none():
    job = Job("distillation", "klCoefficient: 0.01", score=same)
    assert monitored(job, 4) == []
    assert {line[SHARE] for line in job.lines} == {1.0}


def test_a_rule_ends_a_run_without_a_signal():
    job = Job("grpo", "", STOPS, score=same)
    with pytest.raises(RoleEnd, match=r"spec\.health\.rules\[0\]: groups_without_spread_share 1") as ended:
        monitored(job, 10)
    assert (ended.value.code, len(job.lines)) == (EXIT_UNHEALTHY, 4)


def test_a_reward_with_spread_warns_of_nothing():
    job = Job("grpo")
    assert monitored(job, 4) == []
    assert all(line[SHARE] < 1 for line in job.lines)


def test_the_share_is_of_the_groups():
    job = Job("grpo", "", "spec.data.promptsPerStep=10", score=every_other_prompt).steps(0, 1)
    assert job.lines[0][SHARE] == 0.5
    assert (job.lines[0]["groups_all_highest_share"], job.lines[0]["groups_all_lowest_share"]) == (0, 0.5)


def test_groups_that_dynamic_sampling_replaces_are_counted():
    job = make(2, same).steps(0, 1)
    assert (job.lines[0]["groups_filtered"], job.lines[0][SHARE]) == (8, 1)
    job = make(2).steps(0, 1)
    filtered, trained = job.lines[0]["groups_filtered"], len(job.positions("trained"))
    assert filtered > 0
    assert job.lines[0][SHARE] == filtered / (filtered + trained)


@pytest.mark.parametrize(("rounds", "dynamic"), [(0, {}), (1, {}), (0, {"rollouts": streamed})])
def test_rows_that_are_solved_are_passed_over_and_a_resumed_run_asks_the_same(rounds, dynamic):
    more = ("spec.data.curriculum={solvedAt: 0.4, floor: 0.2}", *(DYNAMIC if dynamic else ()))
    settings = f"minibatchSize: 8, dynamicSampling: {rounds}"
    whole = resumed_is_whole(lambda: Job("grpo", settings, *more, **dynamic), 3, 6)
    shares = [line["passed_over_share"] for line in whole.lines]
    assert shares[0] == 0
    assert max(shares[2:]) > 0.2, shares
    state = whole.task.state()
    assert state["position"] > len(whole.positions("issued")) > 10
    assert {int(row) for row in state["solve_rates"]} == set(range(10))


@pytest.mark.parametrize(("score", "share"), [(same, 1), (by_prompt, 0)])
def test_with_one_response_a_prompt_the_steps_responses_are_compared(score, share):
    job = Job("ppo", "minibatchSize: 8", "spec.sampling.responsesPerPrompt=1", score=score).steps(0, 1)
    assert job.lines[0][SHARE] == share


def test_one_response_alone_has_nothing_to_differ_from():
    alone = ("spec.sampling.responsesPerPrompt=1", "spec.data.promptsPerStep=1")
    assert SHARE not in Job("ppo", "minibatchSize: 1", *alone).steps(0, 1).lines[0]


def test_a_job_on_given_responses_has_no_groups():
    job = Job("dpo", rows=PAIRS)
    assert monitored(job, 1) == []
    assert SHARE not in job.lines[0]

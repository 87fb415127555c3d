"""Steps whose scores tell no response from another are counted, warned of, and end a job by a rule."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import PAIRS, RANKS, Job
from tests.unit.trainer.training.test_dynamic_sampling import make, same

from rlhf_api.contract.report import HealthStatus
from rlhf_api.contract.run import EXIT_UNHEALTHY
from rlhf_trainer.process.role import RoleEnd
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.training.monitor import Monitor

SHARE = "groups_without_spread_share"
STOPS = "spec.health={rules: [{metric: groups_without_spread_share, above: 0.99, steps: 4, action: fail}]}"


def monitored(job: Job, steps: int) -> list[HealthStatus]:
    """What the host hears of the health of a run of that many steps."""
    reports = list[HealthStatus]()
    ctx: Any = SimpleNamespace(spec=job.spec, ranks=RANKS, report=lambda health: reports.append(health))
    saver: Any = SimpleNamespace(rollbacks=lambda: 0)
    monitor = Monitor(ctx, saver, begins=0)
    for step in range(steps):
        job.steps(step, step + 1)
        monitor.check(job.lines[-1], step + 1)
    return reports


def every_other_prompt(_sequences: Sequences, rows: Any) -> torch.Tensor:
    """Responses to prompts of even numbers score the same, and differ for the others."""
    return torch.tensor([0.1 if int(row["prompt"][1:]) % 2 == 0 else float(i) for i, row in enumerate(rows)])


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

"""docs/concepts/detection.md says within which time each fault is noticed: the numbers are the code's own."""

import re
from pathlib import Path

import pytest

from rlhf_api.roles import LIVE_FAILURES, LIVE_SECONDS, LIVE_TIMEOUT_SECONDS
from rlhf_api.sections.checkpoint import Checkpoint
from rlhf_api.sections.reward import RewardFunction
from rlhf_api.sections.roles import Generator, Reference, RoleSpec, Trainer
from rlhf_api.sections.weights import Weights
from rlhf_api.spec import Spec
from rlhf_operator.cluster.act.pod_client import EVICTION_SECONDS
from rlhf_operator.cluster.decide.conditions import SILENT_SECONDS
from rlhf_operator.cluster.decide.deadlines import MOVES_ON
from rlhf_operator.cluster.decide.pod_groups import LOST_SECONDS
from rlhf_operator.kube.lease import LEASE_SECONDS
from rlhf_operator.local.host import TICK_SECONDS
from rlhf_operator.local.processes.stopping import REMAIN_SECONDS
from rlhf_operator.supervision.progress_deadline import TOLD_AT
from rlhf_trainer.dispatch.dispatch import LISTENING_SECONDS, TRIES
from rlhf_trainer.engines.vllm.front.probes import CHANGE_SECONDS, HUNG_SECONDS
from rlhf_trainer.engines.vllm.serve.watchdog import LINGER_SECONDS, POLL_SECONDS
from rlhf_trainer.model_cache import STALL_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "detection.md"
TRAINER = Trainer()
BETWEEN = LIVE_SECONDS + LIVE_TIMEOUT_SECONDS
"""Longest time from one liveness probe to the next, of `rlhf run`, which waits for an answer first."""
HUNG = LIVE_FAILURES * BETWEEN
STARTUP = RoleSpec().startup_timeout_seconds
ROWS: dict[str, list[float]] = {
    "a process of any role ends": [TICK_SECONDS],
    "a process does not answer after its start": [STARTUP],
    "any rank of the trainer hangs": [
        TRAINER.progress_deadline_seconds,
        TRAINER.progress_deadline_seconds * (1 + MOVES_ON),
    ],
    "meanwhile, its user is told": [
        TRAINER.progress_deadline_seconds * TOLD_AT,
        TRAINER.progress_deadline_seconds * (TOLD_AT + MOVES_ON),
    ],
    "the operator does not reach the trainer": [SILENT_SECONDS],
    "a generator, reward or reference that has work ends": [LISTENING_SECONDS],
    "vLLM's engine, or a worker of it, ends": [POLL_SECONDS + LINGER_SECONDS],
    "a server hangs": [HUNG],
    "vLLM's engine, or a worker of it, hangs in a generator": [
        BETWEEN + HUNG_SECONDS + HUNG,
        BETWEEN + CHANGE_SECONDS + HUNG,
    ],
    "the same in a reward or reference": [HUNG_SECONDS + HUNG],
    "a reward or reference hangs over a chunk": [Reference().timeout_seconds + HUNG],
    "meanwhile, no token of a prompt comes": [Generator().timeout_seconds],
    "meanwhile, a generator takes no weights": [Weights().timeout_seconds],
    "meanwhile, no values of a chunk or response come": [Reference().timeout_seconds],
    "no generator, reward or reference answers": [STARTUP],
    "meanwhile, a log line and the activity say": [Reference().timeout_seconds],
    "a reward function hangs": [RewardFunction.model_fields["timeout_seconds"].default],
    "the checkpoint store fails": [Checkpoint().timeout_seconds],
    "a model's download stalls": [STALL_SECONDS],
    "SIGKILL does not end a process": [REMAIN_SECONDS],
    "a node falls silent": [40, 50],  # Kubernetes' own defaults
    "a run's work directory is moved or deleted": [TICK_SECONDS],
    "the operator ends": [LEASE_SECONDS],
    "the API server does not answer": [LEASE_SECONDS],
}


def table() -> list[list[str]]:
    rows = re.findall(r"^\| (.*) \|$", PAGE.read_text(), flags=re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def test_the_page_has_these_rows_alone():
    unknown = [row[0] for row in table() if not any(row[0].startswith(name) for name in ROWS)]
    assert unknown == []
    assert len(table()) == len(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_the_times_of_the_page_are_those_of_the_code(name: str):
    (row,) = (row for row in table() if row[0].startswith(name))
    assert [float(number) for number in re.findall(r"([\d.]+) s\b", row[2])] == pytest.approx(ROWS[name])


def test_times_that_are_told_elsewhere_on_the_page_agree():
    text = PAGE.read_text()
    assert set(map(int, re.findall(r"after (\d) times", text))) == {TRIES}
    assert re.findall(r"within (\d+) s`", text) == [str(STARTUP)] * 2
    assert re.findall(r"deletes the pod (\d+) s later", text) == [str(EVICTION_SECONDS)]
    assert LOST_SECONDS == REMAIN_SECONDS, "one row tells of both"
    assert re.findall(r"more than (\d+) minutes", text) == [str(TRAINER.progress_deadline_seconds // 60)]


def test_each_setting_that_the_page_names_exists():
    named = {name for row in table() for name in re.findall(r"`([\w<>.\[\]]+)`", row[3])}
    assert named
    for name in named:
        section, *_, field = name.replace("[]", "").replace("<role>", "trainer").split(".")
        model = RewardFunction if "functions" in name else Spec.model_fields[section].annotation
        assert field in {known.alias for known in model.model_fields.values()}, name

"""A stop while others work on a step: as if the step had not begun, and nothing is lost or trained on twice."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.replay.ppo_worker import Generators
from tests.unit.trainer.training.responses.test_dynamic import DYNAMIC
from tests.unit.trainer.training.running import RANKS, Job, low_tokens

from rlhf_api.contract.run import EXIT_SUSPENDED
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.reading import Snapshot
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.tensors.records import Prompt, Sequences
from rlhf_trainer.training.loop import _evaluate, train


class Answering(Generators):
    """The model itself answers, until the host stops the run."""

    stopping = False

    def answer(self, prompts: list[Any], request: Any, *_: Any, **__: Any) -> Responses:
        if self.stopping:
            raise Stopped("stopped while waiting for the generator")
        ctx, version = self._ctx, self.weights.version
        arguments = (prompts, request, version, ctx.stop)
        return Responses(generate_shared(self._engine, ctx.ranks, ctx.tokenizer, *arguments))


def with_generators() -> tuple[Job, Any]:
    job = Job(
        *("grpo", "klCoefficient: 0", "spec.generator.sharedWithTrainer=false"),
        rollouts=lambda ctx, models: Answering(ctx, models["policy"]),
    )
    return job, job.rollouts


def test_a_stop_while_generating_puts_the_prompts_back():
    job, generators = with_generators()
    job.steps(0, 2)
    before = job.task.state()
    generators.stopping = True
    with pytest.raises(Stopped):
        job.task.collect(2)
    assert job.task.state() == before
    ledger = job.ledger()
    assert (ledger.issued, ledger.trained, ledger.lost) == (6, 6, 0), "of the second epoch"

    after, _ = with_generators()
    after.restore(job.snapshot(2)).steps(2, 5)
    assert after.positions("issued") == after.positions("trained") == list(range(40))
    assert after.ledger().lost == 0


def test_a_stop_while_the_trainer_generates_ends_that_at_once_and_leaves_no_trace():
    whole = Job("grpo", "klCoefficient: 0").steps(0, 3).weights()
    job = Job("grpo", "klCoefficient: 0").steps(0, 2)
    before, passes = job.task.state(), list[None]()

    def stop(*_: object) -> None:
        passes.append(None)
        job.ctx.stop.set()

    hook = job.models["policy"].unwrapped.register_forward_hook(stop)
    with pytest.raises(Stopped, match="while the trainer generated"):
        job.task.collect(2)
    hook.remove()
    assert len(passes) == 1, "not to the end of its responses"
    assert job.task.state() == before
    job.ctx.stop.clear()
    assert job.steps(2, 3).weights() == whole, "as if it had not begun"


@pytest.mark.parametrize("role", ["score", "refer"])
def test_a_stop_while_a_role_is_awaited_puts_the_prompts_back(role):
    stopping = False

    def respond(*given: Any) -> torch.Tensor:
        if stopping:
            raise Stopped(f"stopped while waiting for the {role}")
        return low_tokens(*given) if role == "score" else job.reference(*given)

    settings = "klCoefficient: 0.1, klIn: reward, klTarget: 5.0"
    job = Job("rloo", settings, **{role: respond})
    job.steps(0, 2)
    before = job.task.state()
    stopping = True
    with pytest.raises(Stopped):
        job.task.collect(2)
    assert job.task.state() == before
    assert job.ledger().lost == 0
    cut, stopping = job.snapshot(2), False
    after = Job("rloo", settings).restore(cut).steps(2, 4)
    assert after.positions("trained") == list(range(32))


def test_a_stop_while_the_reference_is_awaited_leaves_no_trace_in_running_moments():
    """With dynamic sampling the reference is asked last: where the penalty is in the loss, the returns are there, and
    counted, before it has answered."""
    stopping = False

    def refer(*given: Any) -> torch.Tensor:
        if stopping:
            while job.op_ctx.state == before["algorithm"]:
                time.sleep(0.01)
            raise Stopped("stopped while waiting for the reference")
        return job.reference(*given)

    settings = "klCoefficient: 0.1, klIn: loss, klEstimator: k3, normalizeValues: true, dynamicSampling: 1"
    job = Job("ppo", settings, refer=refer)
    job.steps(0, 2)
    before, stopping = job.task.state(), True
    with pytest.raises(Stopped):
        job.task.collect(2)
    assert job.task.state() == before


def test_a_stop_while_the_reference_is_awaited_leaves_out_no_row_of_a_dataset():
    """The rows are taken again: those of a run that was never stopped."""
    stopping = False
    referred: list[Sequences] = []

    def refer(sequences: Sequences, rows: Any) -> torch.Tensor:
        if stopping:
            raise Stopped("stopped while waiting for the reference")
        referred.append(sequences)
        return job.reference(sequences, rows)

    job = Job("dpo", refer=refer)
    job.steps(0, 2)
    stopping = True
    with pytest.raises(Stopped):
        job.task.collect(2)
    cut = job.snapshot(2)
    assert cut.state["position"] == 16
    stopping = False
    resumed = Job("dpo", refer=refer).restore(cut).steps(2, 3)
    whole = Job("dpo").steps(0, 3)
    assert resumed.weights() == whole.weights()


def test_rows_that_were_collected_and_not_trained_on_are_collected_again():
    job = Job("dpo").steps(0, 1)
    job.task.collect(1)
    assert job.task.state()["position"] == 8
    assert Job("dpo").restore(job.snapshot(1)).steps(1, 3).weights() == Job("dpo").steps(0, 3).weights()


def test_rows_that_are_collected_again_are_counted_once_in_running_numbers():
    def refer(*given: Any) -> torch.Tensor:
        job.op_ctx.state["batches"] = job.op_ctx.state.get("batches", 0) + 1
        return job.reference(*given)

    job = Job("dpo", refer=refer)
    job.steps(0, 1)
    before = job.task.state()
    job.task.collect(1)
    assert job.task.state() == before
    job.task.train(1)
    assert job.task.state()["algorithm"] == {"batches": 2}


def test_a_stop_while_a_policy_is_evaluated_leaves_that_out_unless_it_is_the_last():
    """Any other step is saved without its evaluation; the last one is trained and evaluated again after a resume, as
    its evaluation is the run's result."""
    ctx: Any = SimpleNamespace(spec=SimpleNamespace(evaluation=True, steps=4), report=lambda **_: None)

    def evaluate(_step: int) -> list[dict[str, Any]]:
        raise Stopped("stopped while the trainer generated")

    task: Any = SimpleNamespace(evaluate=evaluate)
    assert _evaluate(ctx, task, None, 3) is None
    with pytest.raises(Stopped):
        _evaluate(ctx, task, None, 4)


def run_until_stopped(job: Job, folder: Path) -> Snapshot:
    """By the loop itself; the checkpoint that it leaves, which is its only one."""
    job.ctx.services.control.checkpoint_requested = threading.Event()
    archive = Archive(f"file://{folder}")
    committer = Committer.take_over(archive, Retention(last=9))
    with Saver(RANKS, archive, committer, committed=lambda _: None) as saver:
        assert train(job.ctx, job.task, saver, (), None) == EXIT_SUSPENDED
    (entry,) = archive.entries()
    return Snapshot.open(RANKS, archive, entry)


def test_a_stop_while_generators_are_awaited_for_new_weights_saves_the_step_that_made_them(
    tmp_path, monkeypatch
):
    """As where all is stopped at once, and the generators end first. The picture of the run is drawn up to there."""
    monkeypatch.chdir(tmp_path)
    Path("metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.5}\n')
    job, generators = with_generators()
    publish = generators.weights.publish

    def awaited(version: int, committing: Any) -> None:
        if version == 3:
            job.ctx.stop.set()
            raise Stopped("stopped while waiting for the generators")
        publish(version, committing)

    generators.weights.publish = awaited
    assert run_until_stopped(job, tmp_path / "checkpoints").step == 3
    assert job.positions("trained") == list(range(24))
    assert Path("reward.png").exists()


class Streaming(Generators):
    """Stopped in its third step, before a batch or after one."""

    def __init__(self, job: Any, policy: Any, after: int) -> None:
        super().__init__(job, policy)
        self._after = after

    def stream(self, prompts: list[Prompt], size: int | None, **_more: Any) -> Iterator[Responses]:
        for number, batch in enumerate(super().stream(prompts, size)):
            if self.weights.version == 2 and number == self._after:
                self._ctx.stop.set()
                raise Stopped("stopped while the generators were at work")
            yield batch


def dynamic(after: int = 9, **more: Any) -> Job:
    made = "klCoefficient: 0, minibatchSize: 8"
    return Job(
        "grpo", made, *DYNAMIC, rollouts=lambda ctx, models: Streaming(ctx, models["policy"], after), **more
    )


@pytest.mark.parametrize(("after", "step", "trained"), [(0, 2, 16), (1, 3, 18)])
def test_a_stop_while_minibatches_come_keeps_what_was_trained_on(after, step, trained, tmp_path):
    """As if the step had not begun, before the first; else the step is of those that came."""
    cut = run_until_stopped(dynamic(after), tmp_path)
    assert cut.step == step
    resumed = dynamic()
    resumed.task.restore(cut)
    assert len(resumed.positions("trained")) == trained
    assert resumed.ledger().lost == 0
    resumed.steps(step, 5)
    assert resumed.ledger().lost == 0
    assert resumed.positions("trained") == resumed.positions("issued"), "all, and none twice"


def test_a_stop_while_a_minibatch_is_scored_puts_its_prompts_back(tmp_path):
    calls = list[int]()

    def stops(sequences: Sequences, rows: Any) -> torch.Tensor:
        calls.append(len(sequences))
        if len(calls) == 4:
            job.ctx.stop.set()
            raise Stopped("stopped while the reward was scoring")
        return low_tokens(sequences, rows)

    job = dynamic(score=stops)
    cut = run_until_stopped(job, tmp_path)
    assert (cut.step, calls) == (2, [8, 24, 8, 24])
    assert len(job.positions("trained")) == 8 + 2
    resumed = dynamic()
    resumed.task.restore(cut)
    resumed.steps(2, 4)
    assert resumed.ledger().lost == 0
    assert resumed.positions("trained") == resumed.positions("issued")

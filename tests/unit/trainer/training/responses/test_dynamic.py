"""Training on minibatches as they come: by the sizes of the graph, whichever settings its algorithm has."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from examples.own_algorithm.best_of_n import ALGORITHM, graph
from tests.unit.trainer.replay.ppo_worker import Generators
from tests.unit.trainer.training.running import RANKS, Job, low_tokens, resumed_is_whole
from torch import Tensor

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import PHASES
from rlhf_api.field_types import Frozen
from rlhf_api.graph import CRITIC, SEQUENCES, Graph, Train
from rlhf_api.spec import Spec
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.metrics.tracking import Tracking
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ranks.context import TrainerContext
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.tensors.records import Prompt, Sequences
from rlhf_trainer.training.loop import train


class Keep(Frozen):
    """Settings that say nothing of minibatches."""

    keep: int = 1


def sized(*sizes: int | None, epochs: int = 1):
    """A graph whose training nodes, of policy and critic, have minibatches of these sizes."""

    def made(spec: Spec, _settings: Keep) -> Graph:
        *others, policy = graph(spec, ALGORITHM.settings()).nodes
        critic = Train(name="train_critic", model=CRITIC, loss="value", reads=(SEQUENCES,))
        nodes = [
            replace(node, minibatch_size=size, epochs=epochs)
            for node, size in zip((policy, critic), sizes, strict=False)
        ]
        return Graph((*others, *nodes))

    return replace(ALGORITHM, settings=Keep, graph=made)


OF_EIGHT, TWICE, WHOLE, UNEQUAL = sized(8), sized(8, epochs=2), sized(None), sized(8, 4)
DYNAMIC = (
    *("spec.replay.streamDataLoaderType=dynamic", "spec.generator.sharedWithTrainer=false"),
    "spec.sampling={maxNewTokens: 4, responsesPerPrompt: 4}",
)


def streamed(ctx: TrainerContext, models: Mapping[str, TrainedModel]) -> Generators:
    return Generators(ctx, models["policy"])


def own(name: str, *overrides: str) -> Job:
    custom = "spec.custom={scores: true, settings: {keep: 2}}"
    return Job(f"{__name__}:{name}", "", custom, *DYNAMIC, *overrides, rollouts=streamed)


@pytest.mark.parametrize(
    ("name", "expected"), [("OF_EIGHT", [8, 24]), ("TWICE", [8, 24, *[8] * 4]), ("WHOLE", [32])]
)
def test_an_algorithm_of_ones_own_says_by_its_graph_what_an_update_takes(name, expected, monkeypatch):
    """Eight prompts of four responses; the generators' stand-in gives one batch, and the rest. Then further epochs."""
    job, sizes = own(name), list[int]()
    update = TrainedModel.update
    monkeypatch.setattr(
        TrainedModel, "update", lambda self, s, *rest: sizes.append(len(s)) or update(self, s, *rest)
    )
    job.steps(0, 1)
    assert sizes == expected


def test_the_phases_of_a_step_are_no_longer_than_the_step(tmp_path):
    """Waiting for responses and scoring them happens while the step trains, and is not of the updates."""
    job = own(
        "OF_EIGHT", "spec.steps=1", "spec.trackers=[]", f"spec.checkpoint.store={tmp_path.as_uri()}/store"
    )
    job.task._ctx = ctx = replace(job.ctx, workdir=tmp_path)
    ctx.services.control.checkpoint_requested = ctx.stop
    archive = Archive(ctx.spec.checkpoint.store)
    with (
        Tracking("job", ctx.spec, tmp_path) as tracking,
        Saver(RANKS, archive, Committer.take_over(archive, Retention()), committed=lambda _: None) as saver,
    ):
        train(ctx, job.task, saver, (), tracking)
    (step,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    phases = [step[f"{phase}_seconds"] for phase in PHASES]
    assert min(phases[:3]) > 0
    assert sum(phases) <= step["seconds"]


def test_minibatches_of_different_sizes_are_refused():
    message = r"spec.replay.streamDataLoaderType: .*: train_policy 8, train_critic 4; give all the same"
    with pytest.raises(InvalidJob, match=message):
        own("UNEQUAL", "spec.custom.critic=true")


def test_a_minibatch_without_any_score_is_left_out():
    calls = list[int]()

    def score(sequences: Sequences, rows: object) -> Tensor:
        calls.append(len(sequences))
        return low_tokens(sequences, rows) * (torch.nan if len(calls) == 2 else 1.0)

    custom = "spec.custom={scores: true, settings: {keep: 2}}"
    job = Job(f"{__name__}:OF_EIGHT", "", custom, *DYNAMIC, rollouts=streamed, score=score).steps(0, 1)
    assert calls == [8, 24]
    assert (job.ledger().trained, job.ledger().dropped, job.ledger().lost) == (2, 6, 0)


class Asked(Generators):
    """The first prompt that is answered was asked of two generators, which is told when the stream ends."""

    def stream(self, prompts: list[Prompt], size: int | None, **_more: Any) -> Iterator[Responses]:
        first, rest = super().stream(prompts, size)
        yield first
        yield replace(rest, requeued=[first.rollouts[0].prompt.id])


def test_a_prompt_that_was_asked_twice_and_has_no_score_is_dropped():
    """In a minibatch before the last."""

    def score(sequences: Sequences, rows: object) -> Tensor:
        scores = low_tokens(sequences, rows)
        scores[:4] = torch.nan if len(sequences) == 8 else 0.0
        return scores

    made = "klCoefficient: 0, minibatchSize: 8"
    job = Job("grpo", made, *DYNAMIC, score=score, rollouts=lambda ctx, models: Asked(ctx, models["policy"]))
    job.steps(0, 1)
    assert (job.ledger().dropped, job.ledger().lost) == (1, 0)
    assert len(job.positions("trained")) == 7


class Dying(Generators):
    """The last generator dies in the first step, after a batch."""

    def stream(self, prompts: list[Prompt], size: int | None, **_more: Any) -> Iterator[Responses]:
        first, rest = super().stream(prompts, size)
        self.fleet.continued += 3
        yield first
        left = Responses(unanswered=[r.prompt.id for r in rest.rollouts[::4]])
        yield left if self.weights.version == 0 else rest


def test_a_step_whose_generators_die_trains_on_what_came_and_the_next_one_asks_for_the_rest():
    def made() -> Job:
        return Job(
            "grpo",
            "klCoefficient: 0, minibatchSize: 8",
            *DYNAMIC,
            rollouts=lambda ctx, models: Dying(ctx, models["policy"]),
        )

    whole = resumed_is_whole(made, 1, 3)
    assert whole.ledger().lost == 0
    assert [line["responses_continued"] for line in whole.lines] == [3, 3, 3]
    assert len(whole.positions("trained")) == 2 + 8 + 8
    assert whole.positions("issued") == list(range(18)), "the six others and two fresh ones, then eight"

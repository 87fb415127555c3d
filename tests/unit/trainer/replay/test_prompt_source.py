"""Prompts come in their order, and their ledger goes with the checkpoint."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from tests.unit.api.manifests import job
from tests.unit.trainer.replay.made import episode
from tests.unit.trainer.replay.ppo_worker import stored

from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Curriculum, Source
from rlhf_trainer.data.dataset import Dataset, open_dataset
from rlhf_trainer.data.solve_rates import SolveRates
from rlhf_trainer.ranks.context import TrainerContext
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.replay.table import Episode
from rlhf_trainer.rollout.prompt_source import PromptSource
from rlhf_trainer.rollout.responses import Collected
from rlhf_trainer.tensors.records import Prompt


def source(rows: int | Dataset, *overrides: str) -> tuple[PromptSource, list[Any]]:
    """And what it tells."""
    reports: list[Any] = []
    services: Any = SimpleNamespace(
        control=SimpleNamespace(report=lambda **changes: reports.append(changes["ledger"]))
    )
    spec = job("spec.data.promptsPerStep=4", "spec.ppo.minibatchSize=4", *overrides).spec
    ranks = Ranks(0, 1, torch.device("cpu"))
    run = TrainerContext("job", spec, Path(), ranks, byte_tokenizer(), services, threading.Event(), {})
    made = [PromptRow(prompt=f"prompt {i}") for i in range(rows)] if isinstance(rows, int) else rows
    return PromptSource(run, made), reports


def answered(prompts: list[Prompt]) -> Episode:
    return replace(episode(0), prompt_ids=tuple(prompt.id for prompt in prompts))


def resumed() -> tuple[Episode, Prompt, PromptSource, list[Any]]:
    """A source restored with an episode not trained on yet and a fifth prompt in progress, and what it tells."""
    before, _ = source(6)
    made = answered(before.issue(4))
    (fifth,) = before.issue(1)
    before.take(Collected(made, [], {}))
    after, reports = source(6)
    after.restore(before.state(made), made)
    return made, fifth, after, reports


def test_a_checkpoint_with_answers_not_trained_on_holds_their_prompts():
    before, reports = source(6)
    made = answered(before.issue(4))
    before.take(Collected(made, [1], {}))
    after, reports = source(6)
    after.restore(before.state(made), made)
    assert (reports[-1].issued, reports[-1].returned, reports[-1].requeued, reports[-1].lost) == (4, 4, 1, 0)
    after.trained(made)
    assert (reports[-1].trained, reports[-1].lost) == (4, 0)
    assert [prompt.id.split("/")[0] for prompt in after.issue(4)] == ["0", "0", "1", "1"]
    assert (reports[-1].epoch, reports[-1].issued) == (1, 2)


def test_prompts_that_a_step_ends_without_are_the_next_ones():
    before, reports = source(6)
    prompts = before.issue(4)
    part = answered(prompts).select(torch.tensor([0, 1]))
    before.take(Collected(part, [], {}, [2, 3]))
    before.trained(part)
    assert (reports[-1].issued, reports[-1].trained, reports[-1].lost) == (4, 2, 0)
    after, _ = source(6)
    after.restore(before.state(None), None)
    for one in (before, after):
        assert [prompt.id for prompt in one.issue(4)[:2]] == [prompt.id for prompt in prompts[2:]]
    assert reports[-1].issued == 6, "each once"


def test_prompts_without_their_answers_would_be_told_as_lost(caplog):
    before, _ = source(6)
    made = answered(before.issue(4))
    before.take(Collected(made, [], {}))
    after, reports = source(6)
    after.restore(before.state(made), None)
    assert reports[-1].lost == 4
    assert "4 prompts are lost" in caplog.text


def test_prompts_that_have_no_episode_yet_are_issued_again_first_and_entered_once():
    _, ahead, after, reports = resumed()
    assert (reports[-1].issued, reports[-1].lost) == (5, 0)
    again = after.issue(2)
    assert again[0].id == ahead.id
    assert again[1].id.startswith("0/"), "then the one that the epoch still has"
    assert (reports[-1].issued, reports[-1].lost) == (6, 0)


def test_other_prompts_are_refused():
    before, _ = source(6)
    before.issue(4)
    with pytest.raises(
        InvalidJob, match=r"spec.data.train: the checkpoint belongs to a run with 6 samples an epoch; got 5"
    ):
        source(5)[0].restore(before.state(None), None)


@pytest.mark.parametrize("rows", [7, 15])
def test_where_rows_are_added_or_gone_prompts_in_progress_are_those_at_their_positions_now(rows, tmp_path):
    """The number of samples an epoch is as before. By their ids some would be of no row, others of two positions."""

    def data(rows: int) -> Dataset:
        file = tmp_path / f"{rows}.jsonl"
        file.write_text("".join(f'{{"prompt": "p{i}"}}\n' for i in range(rows)))
        return open_dataset([Source(path=str(file))], "prompts", samples=6)

    before, _ = source(data(8))
    before.issue(6)
    after, reports = source(data(rows))
    after.restore(before.state(None), None)
    issued = after.issue(12)
    anew, _ = source(data(rows))
    assert [prompt.id for prompt in issued] == [prompt.id for prompt in anew.issue(12)]
    assert len({prompt.id for prompt in issued}) == 12
    assert (reports[-1].issued, reports[-1].lost) == (6, 0)


def test_prompts_whose_responses_are_given_up_are_the_next_ones():
    made, later, after, reports = resumed()
    after.ask_again(made)
    assert (reports[-1].returned, reports[-1].lost) == (0, 0)
    assert [prompt.id for prompt in after.issue(5)] == [*made.prompt_ids, later.id]
    after.take(Collected(made, [], {}))
    after.trained(made)
    assert (reports[-1].trained, reports[-1].lost) == (4, 0)


CURRICULUM = "spec.data.curriculum={floor: 0.25, window: 2}"


def ask(from_source: PromptSource, count: int) -> list[int]:
    """Rows of the next prompts, which are then answered, scored and trained on: even rows are always solved, of the
    others row 1 by half."""
    prompts = from_source.issue(count)
    rows = [int(prompt.id.partition("/")[2]) for prompt in prompts]
    positions = [from_source.places[prompt.id] for prompt in prompts]
    second = [1.0 if row % 2 == 0 else 0.0 for row in rows]
    from_source.score([*positions, *positions], [*(1.0 if row != 3 else 0.9 for row in rows), *second])
    made = replace(episode(0), prompt_ids=tuple(prompt.id for prompt in prompts))
    columns = made.columns.rows | {"position": torch.tensor(positions)}
    made = replace(made, columns=replace(made.columns, rows=columns))
    from_source.take(Collected(made, [], {}))
    from_source.trained(made)
    return rows


def test_rows_are_asked_in_proportion_to_what_the_policy_does_not_solve():
    made, reports = source(4, CURRICULUM)
    assert sorted(ask(made, 4)) == [0, 1, 2, 3], "each is asked until it was scored once"
    assert made.take_metrics() == {"passed_over_share": 0.0}
    counts = Counter(row for _ in range(1000) for row in ask(made, 4))
    drawn = 4000 / (0.25 + 0.5 + 0.25 + 1) * torch.tensor([0.25, 0.5, 0.25, 1.0])
    for row, expected in enumerate(drawn.tolist()):
        assert counts[row] == pytest.approx(expected, rel=0.08), (row, counts)
    assert made.take_metrics()["passed_over_share"] == pytest.approx(0.5, abs=0.02)
    assert reports[-1].lost == 0


def test_solve_rates_are_of_the_latest_answers_and_go_with_the_checkpoint():
    before, _ = source(6, CURRICULUM)
    for _ in range(5):
        ask(before, 4)
    after, _ = source(6, CURRICULUM)
    after.restore(stored(before.state(None)), None)
    assert [ask(after, 4) for _ in range(20)] == [ask(before, 4) for _ in range(20)]
    assert after.take_metrics() == before.take_metrics()
    rates = SolveRates(Curriculum(floor=0.001, window=2), 0)
    rates.record(3, 3, [0.0])
    assert all(rates.asks(at, 3) for at in range(20))
    rates.record(9, 3, [1.0])
    rates.record(15, 3, [1.0])
    assert not any(rates.asks(at, 3) for at in range(20)), "the first answer is no longer one of the last two"


def test_a_row_whose_prompt_is_asked_again_counts_once_by_its_later_answer():
    """As where a run resumes from a snapshot whose responses are given up."""
    before, _ = source(6, "spec.data.curriculum={floor: 0.001, window: 2}")
    prompts = before.issue(6)
    before.score([*range(6)], [0.0] * 6)
    after, _ = source(6, "spec.data.curriculum={floor: 0.001, window: 2}")
    after.restore(stored(before.state(None)), None)
    assert [prompt.id for prompt in after.issue(6)] == [prompt.id for prompt in prompts]
    after.score([*range(6)], [1.0] * 6)
    shares = [latest for _, latest in sorted(after.state(None)["solve_rates"].items())]
    assert [[share for _, share in latest] for latest in shares] == [[1.0]] * 6


def test_a_curriculum_within_one_epoch_is_said_to_have_no_effect(caplog):
    source(4000, CURRICULUM)
    assert "no effect: spec.data.curriculum; the 16 prompts of all steps are one epoch" in caplog.text

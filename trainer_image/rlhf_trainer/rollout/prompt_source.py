"""Prompts in the run's order, and their ledger."""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob, Problem

from ..data.dataset import stream
from ..data.prompts import is_given, prompts
from ..data.solve_rates import SolveRates
from ..data.vision import IMAGES_OF, ImageReader
from ..ranks.context import TrainerContext
from ..replay.ledger import Ledger
from ..replay.table import Episode
from ..tensors.images import Images, Picture
from ..tensors.records import Prompt
from .oversampling import Oversampling
from .responses import Collected

log = logging.getLogger(__name__)


class PromptSource:
    """Takes prompts from the dataset and records their states in the ledger. The same on every rank."""

    def __init__(
        self,
        ctx: TrainerContext,
        rows: Sequence[Row],
        given: float = 0.0,
        reader: ImageReader | None = None,
    ) -> None:
        """`given`: share of the prompts that come with their row's answer; `reader`: of a policy that reads images."""
        self._ctx, self._rows, self._given, self._reader = ctx, rows, given, reader
        self._stream = stream(rows, ctx.spec.seed)
        curriculum, drawn = ctx.spec.data.curriculum, ctx.spec.steps * ctx.spec.data.prompts_per_step
        self._rates = SolveRates(curriculum, ctx.spec.seed) if curriculum else None
        if curriculum and drawn <= self._stream.mixture.samples:
            log.warning("no effect: spec.data.curriculum; the %d prompts of all steps are one epoch", drawn)
        self._drawn = self._passed_over = 0
        self._ledger = Ledger(self._stream.mixture.samples)
        self.places: dict[str, int] = {}
        """Positions of the prompts in progress, by id."""
        self._pictures: dict[str, Sequence[Picture]] = {}
        """Images of the prompts in progress, by id, if the policy reads any."""
        self._again: list[int] = []
        """Positions of prompts to issue again: from a snapshot, or from a step that ended without them."""
        self._oversampling = Oversampling(ctx.spec.rollout.oversampling, ctx.spec.data.prompts_per_step)

    def issue(self, count: int, later: int = 0) -> list[Prompt]:
        """The prompts of which `count` are to be trained on; those of a snapshot are issued again first. With
        `rollout.oversampling` they may be more than `count`, as long as later steps train on the others: `later`
        prompts in all."""
        again, fresh = self._oversampling.choose(self._again, count, later)
        self._again = [at for at in self._again if at not in set(again)]
        longest, positions = self._ctx.spec.data.max_prompt_length, (*again, *self._next(fresh))
        places = self._stream.at(positions)
        given = {number for number, at in enumerate(positions) if is_given(at, self._given)}
        batch = self._prompts(places, given)
        if cut := sum(prompt.cut > 0 for prompt in batch):
            log.info("%d of %d prompts were cut to %d tokens", cut, len(batch), longest)
        self.places |= {prompt.id: at for prompt, at in zip(batch, positions, strict=True)}
        self._ledger.issue(positions[len(again) :])
        self._report_ledger()
        return batch

    def _next(self, count: int) -> list[int]:
        """The next `count` positions whose rows are to be asked."""
        chosen = list[int]()
        while len(chosen) < count:
            first = self._stream.position
            drawn = enumerate(self._stream.take(count - len(chosen)), first)
            requested = [at for at, (_, row) in drawn if self._rates is None or self._rates.asks(at, row)]
            self._drawn += self._stream.position - first
            self._passed_over += self._stream.position - first - len(requested)
            chosen += requested
        return chosen

    def score(self, positions: Sequence[int], scores: Sequence[float]) -> None:
        """Records the scores of responses, of which each row's are together."""
        if self._rates is None:
            return
        groups: dict[int, list[float]] = {}
        for position, score in zip(positions, scores, strict=True):
            groups.setdefault(position, []).append(score)
        for (position, group), (_, row) in zip(groups.items(), self._stream.at(groups), strict=True):
            self._rates.record(position, row, group)

    def take_metrics(self) -> dict[str, float]:
        """With a curriculum `passed_over_share`: of the rows drawn since the last call, the share that was passed over;
        and metrics of oversampling."""
        drawn, passed_over = self._drawn, self._passed_over
        self._drawn = self._passed_over = 0
        metrics = {"passed_over_share": passed_over / max(1, drawn)} if self._rates else {}
        return metrics | self._oversampling.take_metrics()

    def take(self, collected: Collected) -> Episode | None:
        """Records responses, and prompts that will have none; returns the episode, with its images."""
        self._ledger.requeue(collected.requeued)
        for reason, positions in collected.dropped.items():
            self._ledger.drop(positions, reason)
            self._settle(positions)
        episode = None if collected.episode is None else self.with_images(collected.episode)
        if episode is not None:
            self._ledger.answer(_each_once(episode))
        self._oversampling.stop(collected.stopped)
        again = {*collected.unanswered, *collected.stopped}
        self._again += [at for at in self.places.values() if at in again]
        self._settle([*again])
        self._report_ledger()
        return episode

    def with_images(self, episode: Episode) -> Episode:
        """The episode with the images of its prompts; those of a snapshot, which has none, are read again."""
        if self._reader is None:
            return episode
        where = dict(zip(episode.prompt_ids, episode.columns["position"].tolist(), strict=True))
        lacking = [name for name in where if name not in self._pictures]
        self._prompts(self._stream.at(where[name] for name in lacking))
        images = Images.of([self._pictures[name] for name in episode.prompt_ids])
        sequences = replace(episode.columns.sequences, images=images)
        return replace(episode, columns=replace(episode.columns, sequences=sequences))

    def has_other_images(self, data: Mapping[str, int]) -> bool:
        """True if images have changed since a snapshot, of rows of the checksums `data`."""
        before, now = (
            {name: sum_ for name, sum_ in sums.items() if name.startswith(IMAGES_OF)}
            for sums in (data, self._ctx.data)
        )
        return self._reader is not None and before != now

    def scales_otherwise(self, episode: Episode) -> bool:
        """True if other tokens than those of a snapshot's episode stand for the images of its prompts now."""
        if self._reader is None:
            return False
        sequences, firsts = episode.columns.sequences, {name: i for i, name in enumerate(episode.prompt_ids)}
        sampled = [
            (name, tuple(sequences.row(i)[: sequences.prompt_lengths[i]].tolist()))
            for name, i in firsts.items()
        ]
        positions = episode.columns["position"][[*firsts.values()]].tolist()
        present = [(prompt.id, prompt.tokens) for prompt in self._prompts(self._stream.at(positions))]
        return sampled != present

    def filtered(self, positions: Sequence[int]) -> None:
        """Records prompts whose responses are not trained on because they all have the same score."""
        self._ledger.filter(positions)
        self._settle(positions)
        self._report_ledger()

    def unscored(self, positions: Sequence[int], reason: str) -> None:
        """Records prompts whose responses are not trained on because none could be scored."""
        self._ledger.drop(positions, reason)
        self._settle(positions)
        self._report_ledger()

    def trained(self, episode: Episode) -> None:
        """Records the episode's prompts as trained on."""
        positions = _each_once(episode)
        self._ledger.train(positions)
        self._settle(positions)
        self._report_ledger()

    def reorder(self, times: int) -> None:
        """Reshuffles the prompts that were never issued."""
        self._stream.reorder(times)

    def state(self, pending: Episode | None) -> dict[str, Any]:
        """State for a snapshot; `pending`: the episode not trained on yet; `held`: positions of prompts without an
        episode yet."""
        answered = set(_each_once(pending)) if pending else set()
        drawn = {"drawn": self._drawn, "passed_over": self._passed_over}
        return {
            **self._stream.state(),
            **({"solve_rates": self._rates.state(), **drawn} if self._rates else {}),
            "ledger": self._ledger.state(),
            "held": [at for at in (*self.places.values(), *self._again) if at not in answered],
            **self._oversampling.state(),
        }

    def restore(self, state: Mapping[str, Any], pending: Episode | None) -> None:
        """Inverse of `state`; `pending`: the episode not trained on yet.

        If sources have changed otherwise, prompts to issue again are those that are at their positions now. Raises
        InvalidJob if the number of samples has changed, and if the run trained on given responses, whose positions are
        of another dataset.
        """
        if "ledger" not in state:
            message = "the checkpoint is of a run that trained on given responses"
            raise InvalidJob([Problem("spec.algorithm", f"{message}; start anew from its exported policy")])
        ledger = Ledger.restored(state["ledger"])
        self._stream.restore({"samples": ledger.rows, **state})
        if self._rates:
            self._rates.restore(state.get("solve_rates", {}))
            self._drawn, self._passed_over = state.get("drawn", 0), state.get("passed_over", 0)
        self._ledger = ledger
        self.places = (
            dict(zip(pending.prompt_ids, pending.columns["position"].tolist(), strict=True))
            if pending
            else {}
        )
        # Of an earlier release with their ids.
        held = [at if isinstance(at, int) else at[1] for at in state.get("held", ())]
        self._again = [at for at in held if at not in self.places.values()]
        self._oversampling.restore(state)
        self._report_ledger()

    def ask_again(self, episode: Episode) -> None:
        """Gives up an episode's responses: its prompts are the next ones to be issued."""
        positions = _each_once(episode)
        self._ledger.give_up(positions)
        self._again = [*positions, *self._again]
        self._settle(positions)
        self._report_ledger()

    def _prompts(self, places: Sequence[tuple[int, int]], given: Set[int] = frozenset()) -> list[Prompt]:
        data = self._ctx.spec.data
        made = prompts(self._rows, places, self._ctx.tokenizer, data, given, self._reader)
        if self._reader is not None:
            self._pictures |= {prompt.id: prompt.pictures for prompt in made}
        return made

    def _settle(self, positions: Sequence[int]) -> None:
        settled = set(positions)
        self.places = {name: at for name, at in self.places.items() if at not in settled}
        self._pictures = {name: each for name, each in self._pictures.items() if name in self.places}
        self._oversampling.keep({*self.places.values(), *self._again})

    def _report_ledger(self) -> None:
        status = self._ledger.status((*self.places.values(), *self._again))
        if status.lost:
            log.error(
                "%d prompts are lost: issued, and neither trained on nor dropped nor pending", status.lost
            )
        self._ctx.report(ledger=status)


def _each_once(episode: Episode) -> list[int]:
    """Positions of the episode's prompts, without duplicates."""
    return list(dict.fromkeys(episode.columns["position"].tolist()))

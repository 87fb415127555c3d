"""Prompts in the run's order, and their ledger."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.rows import Row

from ..context import TrainerContext
from ..data.dataset import stream
from ..data.prompts import prompts
from ..records import Prompt
from ..replay.ledger import Ledger
from ..replay.table import Episode
from .responses import Collected

log = logging.getLogger(__name__)


class PromptSource:
    """Takes prompts from the dataset and records their states in the ledger. The same on every rank."""

    def __init__(self, ctx: TrainerContext, rows: Sequence[Row]) -> None:
        self._ctx, self._rows = ctx, rows
        self._stream = stream(rows, ctx.spec.seed)
        self._ledger = Ledger(self._stream.mixture.samples)
        self.places: dict[str, int] = {}
        """Positions of the prompts in progress, by id."""
        self._again: dict[str, int] = {}
        """Positions of prompts to issue again, by id: from a snapshot, or from a step that ended without them."""

    def issue(self, count: int) -> list[Prompt]:
        """The next `count` prompts; those of a snapshot are issued again first."""
        again = dict(list(self._again.items())[:count])
        first = self._stream.position
        places = [_place(prompt_id) for prompt_id in again] + self._stream.take(count - len(again))
        longest = self._ctx.spec.data.max_prompt_length
        batch = prompts(self._rows, places, self._ctx.tokenizer, longest)
        if cut := sum(prompt.cut > 0 for prompt in batch):
            log.info("%d of %d prompts were cut to %d tokens", cut, count, longest)
        fresh = {prompt.id: first + i for i, prompt in enumerate(batch[len(again) :])}
        self._again = {name: at for name, at in self._again.items() if name not in again}
        self.places |= again | fresh
        self._ledger.issue(fresh.values())
        self._tell()
        return batch

    def take(self, collected: Collected) -> Episode | None:
        """Records responses, and prompts that will have none; returns the episode."""
        self._ledger.requeue(collected.requeued)
        for reason, positions in collected.dropped.items():
            self._ledger.drop(positions, reason)
            self._settle(positions)
        if collected.episode is not None:
            self._ledger.answer(_each_once(collected.episode))
        again = set(collected.unanswered)
        self._again |= {name: at for name, at in self.places.items() if at in again}
        self._settle(collected.unanswered)
        self._tell()
        return collected.episode

    def filtered(self, positions: Sequence[int]) -> None:
        """Records prompts whose responses are not trained on because they all have the same score."""
        self._ledger.filter(positions)
        self._settle(positions)
        self._tell()

    def unscored(self, positions: Sequence[int], reason: str) -> None:
        """Records prompts whose responses are not trained on because none could be scored."""
        self._ledger.drop(positions, reason)
        self._settle(positions)
        self._tell()

    def trained(self, episode: Episode) -> None:
        """Records the episode's prompts as trained on."""
        positions = _each_once(episode)
        self._ledger.train(positions)
        self._settle(positions)
        self._tell()

    def reorder(self, times: int) -> None:
        """Reshuffles the prompts that were never issued."""
        self._stream.reorder(times)

    def state(self, pending: Episode | None) -> dict[str, Any]:
        """State for a snapshot; `pending`: the episode not trained on yet; `held`: prompts without an episode yet."""
        answered = set(pending.prompt_ids) if pending else set()
        held = {name: at for name, at in (self.places | self._again).items() if name not in answered}
        return {
            **self._stream.state(),
            "ledger": self._ledger.state(),
            "held": [[name, at] for name, at in held.items()],
        }

    def restore(self, state: Mapping[str, Any], pending: Episode | None) -> None:
        """Inverse of `state`; `pending`: the episode not trained on yet.

        Raises InvalidJob if the number of samples has changed, or the row of a prompt in progress is gone, and if the
        run trained on given responses, whose positions are of another dataset.
        """
        if "ledger" not in state:
            message = "the checkpoint is of a run that trained on given responses"
            raise InvalidJob([Problem("spec.algorithm", f"{message}; start anew from its exported policy")])
        ledger = Ledger.restored(state["ledger"])
        self._stream.restore({"samples": ledger.rows, **state})
        self._ledger = ledger
        self.places = (
            dict(zip(pending.prompt_ids, pending.columns["position"].tolist(), strict=True))
            if pending
            else {}
        )
        self._again = {name: at for name, at in state.get("held", ()) if name not in self.places}
        if gone := [name for name in self._again if _place(name)[1] >= len(self._rows)]:
            message = (
                f"the checkpoint holds prompt {gone[0]} (epoch/row), and the data has {len(self._rows)} rows now; "
                "go on with the same data, or start anew from the exported model"
            )
            raise InvalidJob([Problem("spec.data.train", message)])
        self._tell()

    def ask_again(self, episode: Episode) -> None:
        """Gives up an episode's responses: its prompts are the next ones to be issued."""
        positions = _each_once(episode)
        self._ledger.give_up(positions)
        self._again = {name: at for name, at in self.places.items() if at in positions} | self._again
        self._settle(positions)
        self._tell()

    def _settle(self, positions: Sequence[int]) -> None:
        gone = set(positions)
        self.places = {name: at for name, at in self.places.items() if at not in gone}

    def _tell(self) -> None:
        status = self._ledger.status((*self.places.values(), *self._again.values()))
        if status.lost:
            log.error(
                "%d prompts are lost: issued, and neither trained on nor dropped nor pending", status.lost
            )
        self._ctx.report(ledger=status)


def _place(prompt_id: str) -> tuple[int, int]:
    """(epoch, row) of a prompt's id."""
    epoch, row = prompt_id.split("/")
    return int(epoch), int(row)


def _each_once(episode: Episode) -> list[int]:
    """Positions of the episode's prompts, without duplicates."""
    return list(dict.fromkeys(episode.columns["position"].tolist()))

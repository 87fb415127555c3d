"""Interface between the training loop and an algorithm."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rlhf_api.contract.samples import Sample

from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group


class Task(Protocol):
    """An algorithm's part of a step. Every method is called on all ranks."""

    def collect(self, step: int) -> dict[str, float]:
        """Collects the data of the next step, unless it has it already; returns metrics."""

    def train(self, step: int) -> dict[str, float]:
        """One training step on the collected data; returns metrics. Raises Stopped, on every rank, where it has trained
        on nothing yet, as if the step had not begun."""

    def samples(self, step: int) -> list[Sample]:
        """Responses that the last one, this step, trained on, with their prompts, for people; on rank 0."""

    def other_weights(self) -> str:
        """Names of generators whose served weights differ from what was sent, or ''. The same on every rank."""

    def publish(self, version: int) -> dict[str, float]:
        """Makes the weights known to whoever works with them outside this process; returns metrics of that."""

    def evaluate(self, step: int) -> list[dict[str, Any]]:
        """Metrics of each held-out set, on rank 0. Raises Stopped, on every rank, if a stop is requested meanwhile."""

    def state(self) -> Mapping[str, Any]:
        """JSON state of the task for a snapshot: a copy, since it is written while later steps train."""

    def groups(self) -> Mapping[str, Group]:
        """Tensors of the task for a snapshot; iterating is a collective."""

    def updates(self) -> Mapping[str, int]:
        """Number of updates of each group of tensors that changed all of its kinds; 0 for a group that may stay."""

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        """Blobs of the task for a snapshot, by name; rank 0's are stored. Each is encoded on another thread while later
        steps train, but has the state of this moment."""

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of `state`, `groups` and `blobs`. Called again with an older snapshot if one is damaged."""

    def reorder(self, times: int) -> None:
        """Reshuffles the remaining data, that many times."""

    @property
    def begins(self) -> int:
        """Number of initial steps in which some model is not trained (critic warm-up)."""

    def export(self, step: int) -> None:
        """Writes the trained models, which have made `step` steps, to the work directory."""

    def export_files(self) -> Mapping[str, bytes]:
        """Blobs of every snapshot of this run, on rank 0, by which its models are written elsewhere."""

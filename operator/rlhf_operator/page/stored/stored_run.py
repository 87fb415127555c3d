"""A run by its checkpoint store alone, as it is read months later or from another machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.contract.status import JobStatus

from ..commands import store_commands
from ..folder.run_folder import UNKNOWN, RunFolder
from .store_copy import OpenStore, StoreCopy

if TYPE_CHECKING:
    from rlhf_store.archive import Archive

JOB = "export/job.json"
"""Blob with the run's name, its number of steps and its manifest."""
STORED = "Stored"
"""Phase of a run of which only the store is known: that does not say how the run ended, or whether it has."""


class StoredRun(RunFolder):
    """A run in a store; `folder`: for copies of its files, its own."""

    unpredicted = "its store has none, like that of a cluster's job or of the first run of its models"

    def __init__(self, id: str, url: str, open_store: OpenStore, folder: Path) -> None:
        self._copy = StoreCopy(open_store, folder)
        super().__init__(id, folder, self._copy.fetch)
        self._url = url

    @property
    def place(self) -> str:
        return self._url

    @property
    def commands(self) -> Mapping[str, str]:
        return store_commands(self._url)

    def open_store(self) -> "Archive | None":
        return self._copy.store()

    def config(self) -> Mapping[str, Any]:
        job = self._document(JOB)
        manifest = job.get("manifest")
        spec = manifest.get("spec") if isinstance(manifest, dict) else None
        return {"job": job.get("job"), "spec": {"steps": job.get("steps"), **(spec or {})}}

    def status(self) -> JobStatus | None:
        """Read from its newest checkpoint; None without one."""
        snapshot = self._copy.snapshot()
        if snapshot is None:
            return None
        steps = self.spec().get("steps")
        return JobStatus(
            phase="Suspended",  # `phase` says another
            step=snapshot.step,
            total_steps=steps if isinstance(steps, int) else snapshot.step,
            reward=self.metrics.last("reward_mean"),
            loss=self.metrics.last("loss"),
        )

    def phase(self, status: JobStatus | None) -> tuple[str, str]:
        if self._copy.problem:
            return UNKNOWN, self._copy.problem
        if status is None:
            return UNKNOWN, "its store holds no checkpoint yet"
        return STORED, "from its checkpoints; whether and how it ended is not in them"

    def summary(self) -> dict[str, Any]:
        snapshot = self._copy.snapshot()
        return {
            **super().summary(),
            "gpus": None,
            "restarts": None,
            "updated": snapshot.time if snapshot else None,
        }

    def forget(self) -> None:
        super().forget()
        self._copy.clear()

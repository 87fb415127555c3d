"""A run as an RLHFJob and its store say of it, for one viewer."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_api.contract.status import JobStatus
from rlhf_api.host.redaction import masked
from rlhf_store.errors import UnusableStore

from ..commands import job_commands
from ..folder.run_folder import UNKNOWN, RunFolder
from ..open_archive import open_archive
from ..stored.store_copy import StoreCopy
from .keys import Access

if TYPE_CHECKING:
    from rlhf_store.archive import Archive


class Grant(NamedTuple):
    """A viewer's rights to a job now: its object, and what opens its store, or the reason for hiding that."""

    id: str
    owner: bytes
    """Digest of the viewer's token: what one viewer has read is never another's."""
    body: Mapping[str, Any]
    access: Access | str


class JobRun(RunFolder):
    """An RLHFJob with the data of its store; `folder`: for copies of that, its own. Used while `lock` is held."""

    reads_episodes = False
    unpredicted = (
        "an operator has the rates of no run; `rlhf plan MANIFEST --measured WORKDIR` takes those of one"
    )

    def __init__(self, id: str, folder: Path) -> None:
        self.lock = threading.Lock()
        self.readers = 0
        """Requests that use it, or are about to."""
        self._body: Mapping[str, Any] = {}
        self._access: Access | str = ""
        self._copy: StoreCopy | None = None
        super().__init__(id, folder, self._bring)

    def update(self, grant: Grant) -> None:
        """Takes what was read last; data of another store, or of other keys, are forgotten."""
        self._body = grant.body
        if grant.access != self._access:
            self.forget()
            self._access = access = grant.access
            self._copy = (
                None
                if isinstance(access, str)
                else StoreCopy(lambda: open_archive(access.url, access.keys), self.folder)
            )

    @property
    def place(self) -> str:
        metadata = self._body["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    def config(self) -> Mapping[str, Any]:
        spec = self._body.get("spec")
        public = masked({"spec": spec if isinstance(spec, dict) else {}})
        return {"job": self._body["metadata"]["name"], **public}

    def status(self) -> JobStatus | None:
        try:
            return JobStatus.model_validate_json(json.dumps(self._body.get("status")))
        except ValueError:
            return None

    def phase(self, status: JobStatus | None) -> tuple[str, str]:
        if status is None:
            return UNKNOWN, "the operator has not seen it yet, or its status is of another release"
        return super().phase(status)

    def summary(self) -> dict[str, Any]:
        metadata = self._body["metadata"]
        return {**super().summary(), "namespace": metadata["namespace"], "hidden": self.hidden()}

    def hidden(self) -> str:
        """The reason for which its figures and samples are not shown; empty if they are."""
        if isinstance(self._access, str):
            return self._access
        if self._copy is None:
            return ""
        if self._copy.snapshot() is None and not self._copy.problem:
            return "its store has no checkpoint yet; figures and samples come with the first one"
        return self._copy.problem

    @property
    def commands(self) -> Mapping[str, str]:
        metadata = self._body["metadata"]
        return job_commands(metadata["namespace"], metadata["name"])

    def open_store(self) -> "Archive | None":
        try:
            return None if self._copy is None else self._copy.store()
        except UnusableStore:  # `hidden` says why
            return None

    def forget(self) -> None:
        super().forget()
        if self._copy is not None:
            self._copy.clear()

    def _bring(self, name: str) -> None:
        if self._copy is not None:
            self._copy.fetch(name)

    def last_step_time(self) -> float | None:
        return None  # a checkpoint is not written each step

    def _is_live(self) -> bool:
        return True

    def _updated(self) -> str | None:
        return None

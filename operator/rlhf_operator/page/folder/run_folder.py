"""One run's folder as the page shows it: its files of every release, parsed as far as they can be, cached while they
stay as they are."""

import datetime
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_api.contract.status import ENDED, JobStatus
from rlhf_api.host.redaction import masked
from rlhf_store.errors import DamagedSnapshot, UnusableStore

from ...archive.run_files import Fetch, GrowingFile, leave, read_first
from ...archive.sample_index import SampleIndex
from ...local.records import workdir
from ...status.condition import reason
from ..commands import folder_commands
from ..open_archive import FAILED_SECONDS, open_archive
from .episode_rows import EpisodeRows
from .log_events import LogEvents
from .series import Line, Series

if TYPE_CHECKING:
    from rlhf_store.archive import Archive

Value = TypeVar("Value", str, int)
MOST_BYTES = 8 << 20
"""Of `run.json` and `status.json`."""
EVALUATION = "evaluation/"
"""Begin of the names of held-out figures; the set and the figure follow."""
UNKNOWN = "Unknown"
"""Phase of a run whose status cannot be read."""
_FRESH_SECONDS = 10.0
"""Age of a status above which its `rlhf run` may have died: a live one writes it every second."""


class RunFolder:
    """A run's work directory. Not for several threads at once."""

    reads_episodes = True
    """False where episodes are not parsed, as their libraries would have to be trusted with what others wrote."""

    unpredicted = "no run beside it had trained the same spec.model in the same phases, so it had no rates"
    """The reason for which a run has no predicted seconds."""

    def __init__(self, id: str, folder: Path, fetch: Fetch = leave) -> None:
        """`fetch`: see GrowingFile."""
        self.id, self.folder, self._fetch = id, folder, fetch
        self._empty()
        self.events = LogEvents(folder)
        self._failure = 0.0, ""
        """When the store may be asked again, and why it cannot be read."""
        self._documents: dict[str, tuple[tuple[int, int, int] | None, dict[str, Any]]] = {}

    @property
    def place(self) -> str:
        """The work directory, or the URL of the store."""
        return str(self.folder)

    @property
    def commands(self) -> Mapping[str, str]:
        """Command lines that go on from the run."""
        return folder_commands(self.place)

    @contextmanager
    def opened_store(self) -> "Iterator[Archive | None]":
        """The checkpoint store; None without one. Raises UnusableStore and StoreError for one that cannot be read, and
        the same again for FAILED_SECONDS without asking it."""
        until, problem = self._failure
        if time.monotonic() < until:
            raise UnusableStore(problem)
        try:
            yield self.open_store()
        except DamagedSnapshot:
            raise
        except (RuntimeError, UnusableStore) as error:
            self._failure = time.monotonic() + FAILED_SECONDS, str(error)
            raise

    def open_store(self) -> "Archive | None":
        """The checkpoint store; None without one. What the folder has is read only if it is there: opening one makes
        it. Raises InvalidJob without its packages, and UnusableStore."""
        inner = self.folder / "checkpoints"
        section = self.spec().get("checkpoint")
        store = section.get("store") if isinstance(section, dict) else None
        if inner.is_dir():
            return open_archive(inner.resolve().as_uri())
        if isinstance(store, str) and "://" in store and not store.startswith("file:"):
            return open_archive(store)
        return None

    def config(self) -> Mapping[str, Any]:
        """`run.json` of any release, without secrets; empty without a readable one."""
        return self._document(workdir.CONFIG)

    def status(self) -> JobStatus | None:
        """The last status; None if it is missing, or of a release that this one cannot read."""
        try:
            return JobStatus.model_validate_json(json.dumps(self._document(workdir.STATUS)))
        except ValueError:
            return None

    def phase(self, status: JobStatus | None) -> tuple[str, str]:
        """The phase, and its reason, which for a run whose process was killed says that."""
        if status is None:
            return UNKNOWN, "status.json is missing, or of a release that this one cannot read"
        if status.phase not in (*ENDED, "Suspended") and not self._is_live():
            return "Died", "its `rlhf run` has died; go on with --resume"
        return status.phase, status.message or reason(status, "Failed") or status.activity or ""

    def summary(self) -> dict[str, Any]:
        """The run's entry in the list of runs."""
        status, spec = self.status(), self.spec()
        phase, cause = self.phase(status)
        self.evaluations.refresh()
        began, end = (status.start_time, status.completion_time) if status else (None, None)
        updated = end or self._updated()
        return {
            "id": self.id,
            "name": str(self.config().get("job") or self.folder.name),
            "place": self.place,
            "phase": phase,
            "reason": cause,
            "algorithm": _typed(spec.get("algorithm"), str),
            "step": status.step if status else None,
            "steps": status.total_steps if status else _typed(spec.get("steps"), int),
            "reward": status.reward if status else None,
            "loss": status.loss if status else None,
            "heldOut": self._held_out(),
            "gpus": status.gpus if status else None,
            "cost": status.cost if status else None,
            "restarts": status.restarts if status else None,
            "started": began,
            "updated": updated,
            "seconds": _seconds(began, updated),
        }

    def spec(self) -> Mapping[str, Any]:
        """The manifest's spec; empty where there is none."""
        spec = self.config().get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def memory_bytes(self) -> int:
        """Of its figures and samples, about."""
        episode = self.episode[1].memory_bytes if self.episode else 0
        return self.metrics.bytes + self.samples.memory_bytes + episode

    def forget(self) -> None:
        """Frees the memory of its figures and samples, which the next use reads again."""
        self._empty()

    def _empty(self) -> None:
        self.metrics = Series(self.folder, workdir.METRICS, fetch=self._fetch)
        self.evaluations = Series(self.folder, workdir.EVALUATIONS, _prefix_of_set, self._fetch)
        self.samples = SampleIndex(self.folder, self._fetch)
        self.episode: tuple[tuple[str, ...], EpisodeRows] | None = None
        """The one that was opened last, with what its content is named by."""

    def lines(self, name: str) -> Iterator[bytes]:
        """The whole lines of a file; none without it."""
        return GrowingFile(self.folder, name, self._fetch).begin()[1]

    def last_step_time(self) -> float | None:
        """Time at which the last step was written, in seconds since 1970."""
        fingerprint = self._fingerprint(workdir.METRICS)
        return None if fingerprint is None else fingerprint[2] / 1e9

    def _held_out(self) -> float | None:
        names = (name for name in self.evaluations.names if name.endswith("/mean"))
        return next((value for name in names if (value := self.evaluations.last(name)) is not None), None)

    def _is_live(self) -> bool:
        try:
            age = datetime.datetime.now().timestamp() - (self.folder / workdir.STATUS).stat().st_mtime
        except OSError:
            return False
        return abs(age) < _FRESH_SECONDS or workdir.is_held(self.folder)

    def _updated(self) -> str | None:
        times = [self._fingerprint(name) for name in (workdir.STATUS, workdir.METRICS)]
        newest = max((time[2] for time in times if time is not None), default=None)
        return None if newest is None else iso_time(newest / 1e9)

    def _document(self, name: str) -> dict[str, Any]:
        """A JSON object without secrets; empty without a readable one."""
        self._fetch(name)
        fingerprint = self._fingerprint(name)
        if (cached := self._documents.get(name)) is not None and cached[0] == fingerprint is not None:
            return cached[1]
        try:
            content = json.loads(read_first(self.folder, name, MOST_BYTES) or b"")
            document = masked(content) if isinstance(content, dict) else {}
        except (ValueError, RecursionError):
            document = {}
        self._documents[name] = fingerprint, document
        return document

    def _fingerprint(self, name: str) -> tuple[int, int, int] | None:
        try:
            state = (self.folder / name).stat()
        except OSError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns


def _prefix_of_set(line: Line) -> str:
    return f"{EVALUATION}{str(line.get('set'))[:64]}/"


def iso_time(seconds: float) -> str:
    """A time in seconds since 1970, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _typed(value: object, kind: type[Value]) -> Value | None:
    """A value of `run.json`, which anything may have written; None for one of another type."""
    return value if isinstance(value, kind) else None


def _seconds(began: str | None, end: str | None) -> float | None:
    if not began or not end:
        return None
    span = datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(began)
    return max(0.0, span.total_seconds())

"""Interface of the processes that episodes live in, beside the trainer or in the role of environments."""

from collections.abc import Mapping
from typing import Any, Protocol


class WorkerEnded(Exception):
    """The worker ended, or was killed, before its reply. `blamed`: over this call, which alone was under way when the
    process ended by itself, or took too long. `suspected`: over this one or another of several. `unreachable`: the
    machine or pod that it was in may have ended, for whatever reason, which counts once it comes again."""

    def __init__(
        self, reason: str, *, blamed: bool, suspected: bool = False, unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.blamed, self.suspected, self.unreachable = blamed, suspected, unreachable


class EpisodeWorker(Protocol):
    """A process with `episodes` in it."""

    episodes: int

    @property
    def lives(self) -> bool: ...

    async def call(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Sends a call and waits for the reply. Raises WorkerEnded, also for one that takes longer."""
        ...


class Workers(Protocol):
    """Processes of a job's environment; `schemas`: JSON schemas of the class's tools."""

    schemas: list[dict[str, Any]]

    async def free(self, *, one_by_one: bool = False) -> EpisodeWorker:
        """The process with the fewest episodes, maybe a new one; or the one whose calls come `one_by_one`, beside the
        others. Raises InvalidJob and WorkerEnded."""
        ...

    async def close(self) -> None:
        """Ends all processes."""
        ...


WORKER_ROUTE = "/v1/worker"
"""Of the role's server: a WebSocket for each worker, which lives as long as it is open; `?oneByOne=1`: with calls one
by one. The server begins with `{"schemas": ...}`, or `{"invalid": reason}` or `{"ended": reason}` where none can start.
A call is `{"id", "seconds", "call"}`; it is answered with `{"id", "reply"}` or `{"id", "ended", "blamed",
"suspected"}`, as a WorkerEnded, and before that with `{"id", "waits"}` while it waits for others. `{"sandboxes",
"exhausted"}` tells the URLs of all sandboxes, by their uids, and the uids of those that their commands have ended."""
HEARTBEAT_SECONDS, TRAINER_SECONDS = 20.0, 60.0
"""Interval at which the trainer asks a connection for a sign of life, and at which the role's process does; half of it
without a reply ends it."""

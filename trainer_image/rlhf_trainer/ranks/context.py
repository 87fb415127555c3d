"""Context of a trainer rank: configuration, ranks, work directory, connections."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf_api.spec import Spec

from ..dispatch.control import Control
from ..dispatch.roster import Roster
from ..transport.http import HttpClient
from .ranks import Ranks


@dataclass(frozen=True)
class Services:
    """Rank 0's connections: `control` to the host, `http` and `roster` to the other roles."""

    control: Control
    http: HttpClient
    roster: Roster
    host: str
    """Address of this process for generators."""
    token: str
    """The job's token."""


@dataclass(frozen=True)
class TrainerContext:
    """One run as a rank sees it; `services` is None except on rank 0."""

    job: str
    spec: Spec
    workdir: Path
    ranks: Ranks
    tokenizer: PreTrainedTokenizerBase
    services: Services | None
    stop: threading.Event
    """Set when the run is to end: by the host, or by SIGTERM to any rank's node; see `Ranks.watch_each_other`."""
    data: Mapping[str, int]
    """Checksums of the rows of every source, by its path."""

    def report(self, **changes: object) -> None:
        """Updates the status that the host reads; see `rlhf_api.contract.report.TrainerStatus`."""
        if self.services is not None:
            self.services.control.report(**changes)

    def stop_requested(self) -> bool:
        """True if the run is to end after a checkpoint; the same on every rank."""
        return self.ranks.any(self.stop.is_set())

    def checkpoint_requested(self) -> bool:
        """True if the host requested a checkpoint; reading resets the request."""

        def take_request() -> bool:
            if self.services is None or not self.services.control.checkpoint_requested.is_set():
                return False
            self.services.control.checkpoint_requested.clear()
            return True

        return self.ranks.agree(take_request)

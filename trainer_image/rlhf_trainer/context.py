"""Context of a trainer rank: its configuration, its place in the gang, and where its work goes."""

import threading
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf_api.spec import Spec

from .comms.control import Control
from .comms.http import Background
from .comms.ranks import Ranks
from .comms.roster import Roster


@dataclass(frozen=True)
class Services:
    """Rank 0's connections: to the host by `control`, to the other roles by `http` and `roster`."""

    control: Control
    http: Background
    roster: Roster
    host: str
    """The address under which generators reach this process."""


@dataclass(frozen=True)
class TrainerContext:
    """One run, as each of its ranks sees it; `services` is None on all ranks but the first."""

    job: str
    spec: Spec
    workdir: Path
    ranks: Ranks
    tokenizer: PreTrainedTokenizerBase
    services: Services | None
    stop: threading.Event
    """Set when the run is to end: by the host, or by SIGTERM to a rank's node; see `Ranks.watch_for_stop`."""

    def report(self, **changes: object) -> None:
        """Tells the host; see `rlhf_api.status.TrainerStatus`."""
        if self.services is not None:
            self.services.control.report(**changes)

    def stop_requested(self) -> bool:
        """True if the run is to end after a checkpoint: the same answer on every rank."""
        return self.ranks.any(self.stop.is_set())

    def checkpoint_requested(self) -> bool:
        """True if the host wants a checkpoint now; asking clears the wish."""

        def asked() -> bool:
            if self.services is None or not self.services.control.checkpoint_requested.is_set():
                return False
            self.services.control.checkpoint_requested.clear()
            return True

        return self.ranks.agree(asked)

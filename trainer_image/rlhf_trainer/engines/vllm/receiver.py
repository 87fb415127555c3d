"""One update on its way into a worker, received by a thread while the engine goes on serving."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ...weights.buckets import unpack
from ...weights.group import Group
from ...weights.stream import receive
from .copy_plan import Named
from .held import HeldBase, Weights

log = logging.getLogger("vllm.rlhf")


@dataclass(frozen=True)
class Received:
    """Weights that came whole and fit the model, but do not serve yet; or a base for those of later versions."""

    version: int
    digest: str
    weights: Weights | HeldBase


class Reception:
    """Receives update number `update` of `group`, of weight version `version`; `fit` makes of its tensors what they are
    for, and raises where they do not fit.

    `received` is there once they came whole, `failure` says why they never will; until then both are None. vLLM's
    workers run calls between two steps of the engine: a call that received would stop all generation meanwhile.
    """

    def __init__(
        self,
        group: Group,
        update: int,
        version: int,
        *,
        fit: Callable[[Named], Weights | HeldBase],
        stream: torch.cuda.Stream | None,
    ) -> None:
        """`stream`: on a GPU, one that the engine does not use, or its steps would wait for the wire."""
        self.received: Received | None = None
        self.failure: str | None = None
        self._group, self._update, self._version = group, update, version
        self._fit, self._stream = fit, stream
        threading.Thread(target=self._run, name="rlhf-weights", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._on_stream():
                buckets, digest = receive(self._group, self._update)
                # Here and not in the swap, for which generation is paused.
                weights = self._fit(tuple(pair for bucket in buckets for pair in unpack(bucket)))
        except Exception as error:  # told to the trainer, which asks
            log.warning("weight version %s did not come: %s", self._version, error)
            self._group.abort()
            self.failure = str(error)
        else:
            self.received = Received(self._version, digest, weights)

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        torch.cuda.set_device(self._stream.device)  # which every thread has for itself
        with torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

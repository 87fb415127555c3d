"""Background reception of one update in a worker, while its engine keeps serving."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ....weights.buckets import unpack
from ....weights.group import Group
from ....weights.stream import receive
from .copy_plan import Named
from .held import HeldBase, Weights

log = logging.getLogger("vllm.rlhf")


@dataclass(frozen=True)
class Received:
    """Staged weights: complete, fitting the model, not serving yet; or a base for later versions."""

    version: int
    digest: str
    weights: Weights | HeldBase


class Reception:
    """Receives update number `update` of `group`, of weight version `version`; `fit` converts its tensors and raises
    where they do not fit the model.

    `received` is set once all tensors have arrived, `failure` if they cannot; until then both are None. On a thread,
    because vLLM's workers run calls between two engine steps: receiving in a call would stop all generation.
    """

    def __init__(
        self,
        group: Group,
        update: int,
        version: int,
        *,
        most: float,
        fit: Callable[[Named], Weights | HeldBase],
        stream: torch.cuda.Stream | None,
    ) -> None:
        """`most`: bytes, above which it is no update of this model. `stream`: on a GPU, a CUDA stream that the engine
        does not use, so that its steps do not wait for the network.
        """
        self.received: Received | None = None
        self.failure: str | None = None
        self._group, self._update, self._version = group, update, version
        self._most, self._fit, self._stream = most, fit, stream
        threading.Thread(target=self._run, name="rlhf-weights", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._on_stream():
                buckets, digest = receive(self._group, self._update, self._most)
                # Here and not in the swap, during which generation is paused.
                weights = self._fit(tuple(pair for bucket in buckets for pair in unpack(bucket)))
        except Exception as error:  # reported to the trainer on request
            log.warning("weight version %s was not received: %s", self._version, error)
            self._group.abort()
            self.failure = str(error)
        else:
            self.received = Received(self._version, digest, weights)

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        torch.cuda.set_device(self._stream.device)  # every thread has a current device of its own
        with torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

"""Training on given answers: supervised fine-tuning and reward modelling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_api.rows import Row
from rlhf_api.spec import Data

from ..algorithms.supervised import pair_sequences, preference_loss, response_loss, response_sequences
from ..batches import Loss, OutputFn, response_logprobs, sequence_scores
from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group
from ..context import TrainerContext
from ..data import RowStream
from ..models.export import save_model
from ..models.state import load_training_state, training_state
from ..models.trained_model import TrainedModel
from ..records import Sequences
from .rates import rate_at


@dataclass(frozen=True)
class Kind:
    """What differs between algorithms that train one model on given answers."""

    sequences: Callable[[Sequence[Row], PreTrainedTokenizerBase, Data], Sequences]
    read: OutputFn
    loss: Callable[[Sequences], Loss]
    group: int


KINDS = {
    "sft": Kind(response_sequences, partial(response_logprobs, temperature=1.0), response_loss, group=1),
    "reward": Kind(pair_sequences, sequence_scores, preference_loss, group=2),
}


class Supervised:
    """One model, one update a step on the next rows. Implements `loop.Task`."""

    def __init__(self, ctx: TrainerContext, kind: Kind, engine: TrainedModel, rows: Sequence[Row]) -> None:
        self._ctx, self._kind, self._engine, self._rows = ctx, kind, engine, rows
        self._stream = RowStream(len(rows), ctx.spec.seed)
        self._batch: Sequences | None = None

    def collect(self, step: int) -> dict[str, float]:  # noqa: ARG002
        data = self._ctx.spec.data
        places = self._stream.take(data.prompts_per_step)
        rows = [self._rows[row] for _, row in places]
        self._batch = self._kind.sequences(rows, self._ctx.tokenizer, data)
        return {"tokens": int(self._batch.lengths.sum())}

    def train(self, step: int) -> dict[str, float]:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        rate = rate_at(self._ctx.spec, step, self._ctx.spec.optimizer.learning_rate)
        kind = self._kind
        figures = self._engine.update(batch, kind.read, kind.loss(batch), rate, kind.group)
        return {**figures, "learning_rate": rate}

    def publish(self, version: int) -> None:
        """Nobody else works with these weights."""

    def evaluate(self, step: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def state(self) -> Mapping[str, Any]:
        pending = self._ctx.spec.data.prompts_per_step if self._batch is not None else 0
        return {"position": self._stream.position - pending}

    def groups(self) -> Mapping[str, Group]:
        return {"model": training_state(self._engine)}

    def blobs(self) -> Mapping[str, bytes]:
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        self._stream.position = snapshot.state["position"]

        def get(name: str) -> Tensor:
            return snapshot.tensor("model", name)

        load_training_state(self._engine, get)

    def export(self) -> None:
        save_model(self._engine, self._ctx.tokenizer, self._ctx.workdir / "policy")

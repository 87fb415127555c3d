"""Training on given responses: dataset rows -> sequences -> preparing nodes -> one update per step."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any, cast

from rlhf_api.graph import Dataset, Graph
from rlhf_api.rows import Row

from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group
from ..comms.roster import Stopped
from ..context import TrainerContext
from ..data.dataset import stream
from ..graph.executor import Executor, RemoteCall
from ..models.trained_model import TrainedModel
from ..ops import OpContext
from ..ops.datasets import given_columns
from ..records import Columns
from .export import export_models
from .trained_state import TrainedState
from .updates import Updates, held_out_losses


class OfflineTask:
    """One update of each trained model per step, on the next rows of the dataset. Implements `loop.Task`."""

    def __init__(
        self,
        ctx: TrainerContext,
        graph: Graph,
        models: Mapping[str, TrainedModel],
        remote: Mapping[str, RemoteCall],
        rows: Sequence[Row],
        op_ctx: OpContext,
        held_out: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    ) -> None:
        """`remote`: calls of other roles by their nodes' names, on rank 0 only; `held_out`: rows of each evaluation
        set."""
        assert isinstance(graph.source, Dataset)
        self._ctx, self._graph, self._models, self._rows, self._op_ctx = ctx, graph, models, rows, op_ctx
        self._held_out, self._trained = held_out, TrainedState(models, op_ctx)
        self._source = graph.source
        self._executor = Executor(ctx.ranks, graph, models, remote, op_ctx)
        self._stream = stream(rows, ctx.spec.seed)
        self._batch: Columns | None = None

    def collect(self, step: int) -> dict[str, float]:
        """The next rows, prepared for training. On a stop request while a role is awaited, returns the rows to the
        stream and raises Stopped on every rank."""
        data = self._ctx.spec.data
        rows = [self._rows[row] for _, row in self._stream.take(data.prompts_per_step)]
        self._op_ctx.step = step
        columns, metrics = given_columns(self._source.rows, rows, self._ctx.tokenizer, data)
        try:
            self._batch = self._executor.run(columns)
        except Stopped:
            self._stream.position -= data.prompts_per_step
            raise
        return {"tokens": int(columns.sequences.lengths.sum()), **metrics}

    def train(self, step: int) -> dict[str, float]:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self._op_ctx.step = step
        updates = Updates(self._graph, self._models, self._op_ctx, self._source.group)
        updates.run(batch, whole=True)
        return updates.metrics()

    def other_weights(self) -> str:
        """No generators."""
        return ""

    def publish(self, version: int) -> dict[str, float]:  # noqa: ARG002
        """No generators."""
        return {}

    def evaluate(self, step: int) -> list[dict[str, Any]]:
        """The loss on each set, and its statistics: `count` rows, a pair counted once. Empty if a stop is requested
        while a role is awaited; the step just trained is saved all the same."""
        found, state = list[dict[str, Any]](), deepcopy(self._op_ctx.state)
        self._op_ctx.step = step
        for name, rows in self._held_out.items():
            columns, _ = given_columns(self._source.rows, rows, self._ctx.tokenizer, self._ctx.spec.data)
            try:
                columns = self._executor.run(columns)
            except Stopped:  # on every rank
                found = []
                break
            losses = held_out_losses(self._graph, self._models, self._op_ctx, columns, self._source.group)
            found.append({"set": name, **losses, "count": len(columns) // self._source.group})
        self._op_ctx.state = state  # nodes with running state must not learn from held-out rows
        return found

    def state(self) -> Mapping[str, Any]:
        pending = self._ctx.spec.data.prompts_per_step if self._batch is not None else 0
        order = {"position": self._stream.position - pending, "reorders": list(self._stream.reorders)}
        return {**order, **self._trained.state()}

    def groups(self) -> Mapping[str, Group]:
        return self._trained.groups()

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of `state`. Raises InvalidJob if an adapter or its base has changed."""
        self._trained.restore(snapshot)
        self._stream.position = cast(int, snapshot.state["position"])
        self._stream.reorders = tuple(cast(list[int], snapshot.state.get("reorders", [])))
        self._batch = None

    def reorder(self, times: int) -> None:
        self._stream.reorder(times)

    @property
    def begins(self) -> int:
        return self._graph.begins

    def export(self) -> None:
        export_models(self._ctx, self._graph, self._models)

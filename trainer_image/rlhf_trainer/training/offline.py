"""Training on given responses: dataset rows -> sequences -> preparing nodes -> one update per step."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import Dataset

from ..checkpoint.reading import Snapshot
from ..data.dataset import stream
from ..data.vision import ImageReader
from ..dispatch.roster import Stopped
from ..graph.learner import Learner
from ..ops.datasets import given_columns
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from ..rollout.remote import Remote
from ..tensors.columns import Columns
from ..updates.updates import Updates, held_out_losses, trained_rows
from .encoder import Encoder
from .graph_task import GraphTask


class OfflineTask(GraphTask):
    """One update of each trained model per step, on the next rows of the dataset. Implements `task.Task`."""

    def __init__(
        self,
        ctx: TrainerContext,
        learner: Learner,
        remote: Remote,
        rows: Sequence[Row],
        held_out: Mapping[str, Sequence[Row]],
        reader: ImageReader | None = None,
    ) -> None:
        """`held_out`: rows of each evaluation set; `reader`: of a policy that reads images."""
        super().__init__(ctx, learner, remote)
        assert isinstance(self._graph.source, Dataset)
        self._source, self._held_out = self._graph.source, held_out
        encoding = (ctx.tokenizer, ctx.spec.data, reader)
        self._encoder = Encoder(rows, lambda some: given_columns(self._source.rows, some, *encoding))
        self._stream = stream(rows, ctx.spec.seed)
        self._batch: Columns | None = None
        self._running: dict[str, Any] = {}
        """Running state of the operations before the batch."""

    def collect(self, step: int) -> dict[str, float]:
        """The next rows, prepared for training. On a stop request while a role is awaited, returns the rows to the
        stream and raises Stopped on every rank."""
        data = self._ctx.spec.data
        self._op_ctx.step, self._running = step, deepcopy(self._op_ctx.state)
        with RECORDER.measure(self._source.name):
            columns, metrics = self._encoder.take(self._stream.take(data.prompts_per_step))
        try:
            self._batch = self._executor.run(columns)
        except Stopped:
            self._stream.position -= data.prompts_per_step
            self._op_ctx.state = self._running
            raise
        return {"tokens": int(columns.sequences.lengths.sum()), **metrics}

    def train(self, step: int) -> dict[str, float]:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self._op_ctx.step = step
        if step + 1 < self._ctx.spec.steps:
            self._encoder.begin(self._stream.peek(self._ctx.spec.data.prompts_per_step))
        updates = Updates(self._learner)
        updates.run(batch, whole=True)
        self._learner.follow()
        return updates.metrics()

    def other_weights(self) -> str:
        """Nothing to report: the job has no generators."""
        return ""

    def publish(self, version: int) -> dict[str, float]:  # noqa: ARG002
        """Nothing to publish: the job has no generators."""
        return {}

    def evaluate(self, step: int) -> list[dict[str, Any]]:
        """The loss on each set, and its statistics: `count` rows, a pair counted once."""
        results, state = list[dict[str, Any]](), deepcopy(self._op_ctx.state)
        self._op_ctx.step = step
        try:
            for name, rows in self._held_out.items():
                columns, _ = self._encoder.encode(rows)
                columns = self._executor.run(columns)
                losses = held_out_losses(self._learner, columns)
                count = len(trained_rows(self._graph.train[0], columns)) // self._source.group
                results.append({"set": name, **losses, "count": count})
        finally:
            self._op_ctx.state = state  # nodes with running state must not learn from held-out rows
        return results

    def state(self) -> Mapping[str, Any]:
        state = {**self._stream.state(), **self._learner.state()}
        if self._batch is not None:  # its rows are collected again
            position = self._stream.position - self._ctx.spec.data.prompts_per_step
            state |= {"position": position, "algorithm": self._running}
        return state

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of `state`. Raises InvalidJob if the number of rows, an adapter or its base has changed, or for a run
        that sampled its responses, whose positions are of another dataset."""
        if "ledger" in snapshot.state:
            message = "the checkpoint is of a run that sampled its responses"
            raise InvalidJob([Problem("spec.algorithm", f"{message}; start anew from its exported policy")])
        self._learner.restore(snapshot)
        self._stream.restore(snapshot.state)
        self._batch = None

    def reorder(self, times: int) -> None:
        self._stream.reorder(times)

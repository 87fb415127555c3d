"""Parts of a task that do not depend on where its responses come from."""

from collections.abc import Mapping

from rlhf_api.contract.samples import Sample

from ..checkpoint.segments import Group
from ..export.saved_job import export_files
from ..export.trained_models import export_models
from ..graph.executor import Executor
from ..graph.learner import Learner
from ..ranks.context import TrainerContext
from ..rollout.remote import Remote


class GraphTask:
    """A learner with the executor of its preparing nodes; the part of `task.Task` that follows from these alone."""

    def __init__(self, ctx: TrainerContext, learner: Learner, remote: Remote) -> None:
        self._ctx, self._learner, self._graph, self._op_ctx = ctx, learner, learner.graph, learner.op_ctx
        self._executor = Executor(ctx.ranks, learner, remote.nodes)

    def samples(self, step: int) -> list[Sample]:  # noqa: ARG002
        return []

    def groups(self) -> Mapping[str, Group]:
        return self._learner.groups()

    def updates(self) -> Mapping[str, int]:
        return self._learner.updates()

    @property
    def begins(self) -> int:
        return self._graph.begins

    def export(self, step: int) -> None:
        export_models(self._ctx, self._learner.models, step)

    def export_files(self) -> Mapping[str, bytes]:
        return export_files(self._ctx, self._learner.models)

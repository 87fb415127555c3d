"""Outcomes of the last reconcile of each job: the API server's refusal, and the attempt whose pods were created."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_api.contract.status import JobStatus
from rlhf_api.roles import Role

from ...job.names import pod_name
from ...job.snapshot import Job, is_marked
from ...kube.api import Key
from ...kube.api_error import ApiError
from ..decide.next_step import Plan
from ..decide.refusal import Refusal, by_server
from ..watching.cache import Cache
from .ownership import owned_by


class Outcomes:
    """Kept in memory by one operator; its successor learns them from the status, or by trying."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._refused: dict[Key, Refusal] = {}
        self._made: dict[Key, int] = {}

    def refusal(self, key: Key) -> Refusal | None:
        """The API server's refusal of the objects that were to be created last."""
        return self._refused.get(key)

    def created_attempt(self, key: Key) -> int | None:
        """Newest attempt of the trainer gang of which this operator has created a pod."""
        return self._made.get(key)

    def forget(self, key: Key) -> None:
        self._refused.pop(key, None)
        self._made.pop(key, None)

    @contextmanager
    def noted(self, key: Key, job: Job, todo: Plan) -> Iterator[None]:
        """Records, for the next reconcile alone, what the API server refuses; and which attempt has pods now."""
        self._refused.pop(key, None)
        try:
            yield
        except ApiError as error:
            problem = by_server(error, accepted=_accepted(job.status, todo.status))
            self._refused[key] = Refusal(job.generation, problem)
            raise
        finally:
            trainers = [new for new in todo.create if new.role is Role.TRAINER]
            gang = {pod_name(job.name, new.role, new.index): new.attempt for new in trainers}
            for pod in self._cache.pods(key) if gang else ():
                ours = owned_by(pod, job) and is_marked(pod, job.name)  # else it only has the name still
                if ours and (attempt := gang.get(pod["metadata"]["name"])) is not None:
                    self._made[key] = attempt


def _accepted(before: JobStatus | None, now: JobStatus | None) -> bool:
    """True if trainer pods of the present configuration were all accepted before, by the status before this step."""
    if before is None or before.cluster is None or now is None or now.cluster is None:
        return False
    cluster = before.cluster
    started = cluster.attempt > 1 or 0 < cluster.attempt != cluster.unmade
    return started and cluster.config == now.cluster.config

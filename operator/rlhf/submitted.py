"""A job on a cluster: submitted, followed and suspended by the verbs of `rlhf`."""

import argparse
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from rlhf_api.contract.status import JobStatus
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.job import RLHFJob
from rlhf_operator.console.exits import Failure
from rlhf_operator.kubectl import on_cluster
from rlhf_operator.verbs.change import suspend
from rlhf_operator.verbs.client import Session
from rlhf_operator.verbs.jobs import find, is_finished, poll_job, status_of
from rlhf_operator.verbs.submit import submit
from rlhf_operator.verbs.terminal import put

T = TypeVar("T")
_SUSPEND_SECONDS = 1200.0


@dataclass(frozen=True)
class Submitted:
    """A job by name on the cluster of a kubeconfig's context; what is None is as the kubeconfig says."""

    name: str
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def apply(self, job: RLHFJob, *, force_conflicts: bool = False) -> Self:
        """Applies the job and returns this. Raises Failure."""
        options = argparse.Namespace(
            file=self.name, job=job, namespace=self.namespace, force_conflicts=force_conflicts, program="rlhf"
        )
        self._call(lambda session: submit(session, options))
        return self

    def status(self) -> JobStatus | None:
        """Its status; None before an operator has seen it. Raises Failure if it cannot be read."""
        return status_of(self._call(lambda session: find(session, self.name)))

    def wait(self) -> JobStatus:
        """Waits until it has ended and returns the last status. Ctrl-C ends the wait alone. Raises Failure for a failed
        job, and if it is deleted."""

        async def follow(session: Session) -> JobStatus:
            async for body in poll_job(session, self.name, lambda line: put(line, sys.stderr)):
                status = status_of(body)
                if status is not None and is_finished(status):
                    return status
            raise AssertionError  # `poll_job` is endless

        status = self._call(follow)
        if status.phase == "Failed":
            raise Failure(status.message)
        return status

    def stop(self) -> None:
        """Has it save a checkpoint and end its pods, and waits for that; `rlhf resume` continues it. Raises Failure."""
        options = argparse.Namespace(name=self.name, wait=True, timeout=_SUSPEND_SECONDS, program="rlhf")
        self._call(lambda session: suspend(session, options))

    def _call(self, act: Callable[[Session], Awaitable[T]]) -> T:
        """The result of `act`, on a thread of its own: a notebook's main thread has an event loop already."""
        loop = EventLoop("rlhf")
        try:
            return loop.run(on_cluster(act, self.namespace, self.context, self.kubeconfig))
        finally:
            loop.close()

"""Reconciles a job that MultiKueue dispatches: this cluster has its place in the queue, another its pods."""

from dataclasses import replace

from rlhf_api.contract.status import ENDED
from rlhf_api.errors.problem import InvalidJob

from ...job.names import QUEUE
from ...job.snapshot import Job
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError
from ..decide.describe import Event
from ..decide.next_step import POLL_SECONDS, seconds_until_ttl
from ..decide.refusal import invalid_spec, refusal_message
from ..objects.kueue import quota
from ..observe.desired import Desired, active_config, asks_to_suspend
from ..observe.desired_reader import DesiredReader
from .kueue_client import KueueClient
from .recorder import Recorder


class Dispatcher:
    """Writes the job's Workload and events; its status is written by whoever runs it."""

    def __init__(self, api: Api, desired: DesiredReader, kueue: KueueClient, recorder: Recorder) -> None:
        self._api, self._desired, self._kueue, self._recorder = api, desired, kueue, recorder

    async def reconcile(self, key: Key, job: Job) -> float | None:
        """Lines up a job that MultiKueue runs on another cluster, where its pods are made and its status is written.
        Returns as `Reconciler.reconcile` does."""
        workload, is_leaving = self._kueue.workload(key, job), "deletionTimestamp" in job.body["metadata"]
        if job.queue is None or asks_to_suspend(job) or is_leaving:
            if job.queue is None and not is_leaving:
                message = f"no cluster is asked to run the job: it has no label {QUEUE}"
                await self._recorder.record(job.body, Event("Warning", "NoQueue", message))
            await self._kueue.leave(job, workload, None)
            return None
        await self._kueue.release(job, workload)  # whereupon Kueue withdraws the job from the other cluster
        if job.status is not None and job.status.phase in ENDED:
            left = seconds_until_ttl(job, job.status, self._api.clock.now())
            if left is None or left > 0:
                return left
            await self._api.delete("RLHFJob", job.namespace, job.name, uid=job.uid)
            return None
        try:
            want = await self._desired.read(key, replace(job, status=None), [])
        except InvalidJob as error:
            await self._recorder.record(job.body, invalid_spec(error))
            return None  # of which no other cluster can make more
        if want.waits is not None:
            await self._recorder.record(job.body, Event("Warning", want.waits.reason, want.waits.message))
            return POLL_SECONDS
        held = quota(job, want.spec, workload, want.pinned.name, started=active_config(job) is not None)
        if held == "outgrown":
            await self._kueue.leave(job, workload, None)
            return POLL_SECONDS
        if held in ("absent", "outdated"):
            await self._enter(job, want, workload)
        return None

    async def _enter(self, job: Job, want: Desired, workload: Body | None) -> None:
        """Lines the job up; a refusal is told by an event, as its status is another's."""
        try:
            await self._kueue.enter(job, want, workload)
        except ApiError as error:
            message = f"the job cannot be lined up: {refusal_message(error)}"
            await self._recorder.record(job.body, Event("Warning", "WorkloadRefused", message))
            raise

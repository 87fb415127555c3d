"""Deadlines of deleted pods by this process's own clock: those that API servers write are of the clocks of several
machines, and a pod that is given up too early may still train beside its successor."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...job.snapshot import Pod
from ...kube.api import Key


class DeletionWatch:
    """Keeps when each deleted pod was first observed so; another process begins anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: dict[Key, dict[str, float]] = {}

    def observed(self, key: Key, pods: Sequence[Pod], now: float) -> list[Pod]:
        """The pods, none with a deadline before its whole grace period was observed here. `now`: the time that their
        deadlines are compared with."""
        going, known, clock = [p for p in pods if p.deletion_deadline is not None], self._first, self._clock()
        first = {pod.uid: known.get(key, {}).get(pod.uid, clock) for pod in going}
        known[key] = first
        if not first:
            del known[key]
        return [
            replace(
                pod, deletion_deadline=max(pod.deletion_deadline, now - clock + first[pod.uid] + pod.grace)
            )
            if pod.deletion_deadline is not None
            else pod
            for pod in pods
        ]

    def forget(self, key: Key) -> None:
        self._first.pop(key, None)

"""Polls generators for the progress of an update that they receive."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.contract.run import Member

from .members import Calls, MembersFailed, Servers

LOOK_S = 0.2  # poll interval while the trainer sends, seconds: bounds the detection of a death
POLL_S = 0.002  # and once all is sent


class Staging:
    """Polls `targets`, which receive weight version `version`, for their progress."""

    def __init__(self, servers: Servers, targets: Sequence[Member], version: int) -> None:
        self._servers, self._targets, self._version = servers, targets, version
        self._calls: Calls | None = None
        self._next = time.monotonic() + LOOK_S

    def check(self) -> None:
        """Never blocks; raises MembersFailed if a server has failed, or has not answered an earlier call."""
        if self._calls is None:
            if time.monotonic() >= self._next:
                self._calls = self._servers.status(self._targets)
        elif self._calls.done():
            _refuse_failed(self._calls.results())
            self._calls, self._next = None, time.monotonic() + LOOK_S

    def complete(self, digest: str, timeout_s: float) -> None:
        """Returns once every worker has received weights of `digest`; raises MembersFailed if one has not in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            answers = self._servers.status(self._targets).results()
            _refuse_failed(answers)
            late = [t for t, answer in answers.items() if not self._all_have(answer)]
            if not late:
                break
            if time.monotonic() > deadline:
                raise MembersFailed(dict.fromkeys(late, f"did not receive everything within {timeout_s:g} s"))
            time.sleep(POLL_S)
        if wrong := _disagreeing(answers, staged_version=self._version, staged_digest=digest):
            raise MembersFailed(wrong)

    def _all_have(self, answer: Any) -> bool:
        return all(worker["staged_version"] == self._version for worker in answer["results"])


def _disagreeing(status: Mapping[Member, Any], **expected: Any) -> dict[Member, str]:
    """Members of which a worker does not report what is `expected`, with its report."""
    disagreeing = {}
    for target, answer in status.items():
        reports = [{key: worker[key] for key in expected} for worker in answer["results"]]
        if any(worker != expected for worker in reports):
            disagreeing[target] = f"has {reports}, sent was {expected}"
    return disagreeing


def _refuse_failed(status: Mapping[Member, Any]) -> None:
    reasons = {
        target: reason
        for target, answer in status.items()
        for worker in answer["results"]
        if (reason := worker["failure"]) is not None
    }
    if reasons:
        raise MembersFailed(reasons)

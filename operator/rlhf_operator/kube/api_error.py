"""Errors of calls of the Kubernetes API, with their reasons."""

import re
from typing import Any

_BY_ROLES = re.compile(r'\bforbidden: User ".*?" cannot ')
_NOT_SERVED = re.compile(r"page not found|could not find the requested resource")
"""The API server's words for a version or a kind that it does not serve."""


class ApiError(Exception):
    """The API server refused a call, or did not answer: then `status` is 0. `kind`: kind of the object of the call."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None, kind: str = ""
    ) -> None:
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.kind = kind
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after

    @property
    def lacks_right(self) -> bool:
        """True for a 403 by RBAC; quotas and admission forbid with the same code and another message."""
        return self.status == 403 and _BY_ROLES.search(self.message) is not None

    @property
    def not_served(self) -> bool:
        """True for a 404 of the kind, not of the object: whether that exists is unknown."""
        return self.status == 404 and _NOT_SERVED.search(self.message) is not None

    @property
    def of_job(self) -> bool:
        """True if the call failed because of the job, by a quota, a policy, a name that is taken or an object that the
        server does not know, and not by a failure of the operator."""
        named = self.status == 409 and self.reason == "AlreadyExists"
        refused = named or self.status in (400, 403, 404, 422)
        return refused and self.kind != "RLHFJob" and not self.lacks_right


def refusal(status: int, answer: dict[str, Any], call: str, retry_after: str | None, kind: str) -> ApiError:
    """The error in an answer: a `Status` object of Kubernetes, or whatever a proxy in front of it says."""
    details = answer.get("details")
    after = retry_after or (details.get("retryAfterSeconds") if isinstance(details, dict) else None)
    seconds = float(after) if after is not None and str(after).isdigit() else None
    return ApiError(status, answer.get("reason") or "", f"{call}: {answer.get('message', '')}", seconds, kind)

"""API calls of the command line that the operator's own client lacks, and errors of calls as one line: the error, the
cluster, the remedy."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import aiohttp

from ..kube.api import Api, Body
from ..kube.api_error import ApiError
from ..kube.calls import APPLY
from ..kube.kinds import body_path, object_path
from .kubeconfig import Target

FIELD_MANAGER = "rlhf"

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PAGE = "500"
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
"""Time without log output after which the connection is reopened, seconds."""


class Session(Api):
    """One cluster and one namespace in it. Every method raises ApiError if the call fails."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.configuration)
        self.namespace, self.cluster = target.namespace, target.cluster

    def qualified(self, name: str) -> str:
        """A job's name with its namespace, for messages."""
        return f"{self.namespace}/{name}"

    async def patch_job(self, name: str, patch: Body, subresource: str = "") -> Body:
        """Merge patch (RFC 7386) of a job: sets only the fields in the patch."""
        path = "/".join(filter(None, (object_path("RLHFJob", self.namespace, name), subresource)))
        query = {"fieldManager": FIELD_MANAGER}
        content = "application/merge-patch+json"
        return await self._call("patch", "PATCH", "RLHFJob", path, query=query, body=patch, content=content)

    async def submit(self, body: Body, *, force: bool) -> Body:
        """Server-side apply, with the command line as field manager."""
        path = body_path(body, body["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()}
        return await self._call("apply", "PATCH", body["kind"], path, query=query, body=body, content=APPLY)

    async def job_table(self, *, everywhere: bool) -> tuple[list[Body], list[Body]]:
        """The jobs as `kubectl get` shows them: column definitions, and rows. `everywhere`: of all namespaces."""
        columns, rows = list[Body](), list[Body]()
        query, path = {"limit": _PAGE}, object_path("RLHFJob", None if everywhere else self.namespace, "")
        while True:
            page = await self._call("list", "GET", "RLHFJob", path, query=query, accept=_TABLE)
            columns = page.get("columnDefinitions") or columns
            rows += page.get("rows") or ()
            more = page.get("metadata", {}).get("continue")
            if not more:
                return columns, rows
            query["continue"] = more

    async def events(self, uid: str) -> list[Body]:
        """All stored events about an object, unordered."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": _PAGE}
        listing = await self._call(
            "list", "GET", "Event", object_path("Event", self.namespace, ""), query=query
        )
        return list(listing.get("items") or ())

    async def log(
        self, pod: str, container: str, *, follow: bool, tail: int | None, since: str | None
    ) -> AsyncIterator[bytes]:
        """A container's log, each line with its time, in chunks as they arrive; with `follow`, until it ends or falls
        silent."""
        query = {"container": container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        query |= {"tailLines": str(tail)} if tail is not None else {}
        query |= {"sinceTime": since} if since else {}
        path = object_path("Pod", self.namespace, pod) + "/log"
        headers: dict[str, str] = {"User-Agent": FIELD_MANAGER}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        url = f"{self.configuration.host}{path}?{urlencode(query)}"
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            answer = await self._client.rest_client.request(
                "GET", url, headers=headers, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            try:
                if response.status != 200:
                    raise _refusal(response.status, await response.text(errors="replace"), path)
                async for piece in response.content.iter_any():
                    yield piece
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, type(error).__name__, f"GET {path}: {error or 'silent'}") from None


def _refusal(status: int, text: str, path: str) -> ApiError:
    """Error of a log request: plain text or a Status."""
    try:
        answer: Any = json.loads(text)
        message = str(answer["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return ApiError(status, "", f"GET {path}: {message}")


def explain(error: ApiError, where: str) -> str:
    """Text of an API server's refusal, or missing reply; `where` names the cluster."""
    _, _, message = error.message.partition(": ")  # without the call
    message = " ".join(message.split()) or error.reason
    match error.status:
        case 0:
            return f"cannot reach {where}: {message}; is it up, and is that the cluster you mean?"
        case 401:
            return f"{where} does not accept your credentials ({message}); log in again"
        case 403 if error.lacks_right:
            return f"{message}; ask for the cluster's role `view` (to look) or `edit` in that namespace"
        case 403:
            return f"{where} refused it: {message}"
        case 409:
            return message
        case 415:
            return f"{where} is too old: it does not know server-side apply ({message}); Kubernetes 1.20 does"
        case 429:
            return f"{where} has too much to do ({message}); try again"
        case status if status >= 500:
            return f"{where} has failed: {status} {message}; try again, or look at the API server's logs"
        case status:
            return f"{where} refused it: {status} {message}"


def passing(error: ApiError) -> bool:
    """Transient: the same call may succeed later."""
    return error.status in (0, 429) or error.status >= 500

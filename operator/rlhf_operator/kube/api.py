"""Client of the Kubernetes API: plain dictionaries, and a deadline on every call."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from .api_error import ApiError, refusal
from .calls import APPLY, allow_deep_json, as_yaml
from .clock import ServerClock
from .kinds import FIELD_MANAGER, KINDS, body_path, group_path, object_path
from .pages import Body as Body
from .pages import Keep, Page

Key = tuple[str, str]
"""Namespace and name of a job."""

_DEADLINE_SECONDS, _PAGE_SECONDS = 10.0, 60.0
_CHUNK = 1 << 18
_PAGE, _METADATA_PAGE = 100, 500  # what is read at a time is much of the memory that is ever used
_JOBS_PAGE = 20
"""A page of a hundred jobs that are as large as they are stored, even of their metadata, takes an API server gigabytes
and more seconds than a call has."""
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

Observe = Callable[[str, str, int, float], None]
"""Called after every API call: verb, kind, status (0 without a reply), seconds."""


class Api:
    """Client of one API server. Every method raises ApiError if the call fails."""

    def __init__(self, configuration: Configuration, observe: Observe = lambda *_: None) -> None:
        self.configuration = configuration
        self.fence: Callable[[], bool] = lambda: True
        """Fencing: true while this process may write; checked before every create, apply and delete, and before every
        order to a trainer."""
        self.clock = ServerClock()
        self._client = ApiClient(configuration)
        self._observe = observe

    @classmethod
    async def connect(cls, observe: Observe = lambda *_: None) -> "Api":
        """Connects to the cluster of this pod, unless KUBECONFIG names another.

        Raises:
            ValueError: there is neither.
        """
        allow_deep_json()
        configuration, path = Configuration(), os.environ.get("KUBECONFIG")
        try:
            if path or "KUBERNETES_SERVICE_HOST" not in os.environ:
                await config.load_kube_config(path, client_configuration=configuration)
            else:
                config.load_incluster_config(configuration)  # rereads its token every minute
        except (config.ConfigException, OSError) as error:
            raise ValueError(
                f"found no cluster to talk to: set KUBECONFIG or run in a pod ({error})"
            ) from None
        configuration.proxy = configuration.proxy or _proxy(configuration.host)
        # Otherwise every call would read ~/.netrc and the proxy variables again.
        configuration.client_session_kwargs = {"trust_env": False}
        return cls(configuration, observe)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Body:
        return await self._call("get", "GET", kind, object_path(kind, namespace, name))

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """`dry_run`: only asks whether the API server, with all that admits objects, would take it."""
        return await self._change("create", "POST", body, "", {"dryRun": "All"} if dry_run else {})

    async def review(self, body: Body) -> Body:
        """Creates a review, which stores nothing: every replica may."""
        return await self._call(
            "create", "POST", body["kind"], object_path(body["kind"], None, ""), body=body
        )

    async def apply(self, body: Body) -> Body:
        """Server-side apply, forced: takes over ownership of all fields in the body."""
        return await self._change("apply", "PATCH", body, body["metadata"]["name"])

    async def apply_status(self, body: Body) -> Body:
        return await self._change("apply_status", "PATCH", body, body["metadata"]["name"] + "/status")

    async def merge_status(self, kind: str, namespace: str, name: str, patch: Body) -> Body:
        """Merge patch (RFC 7386) of the status; 409 if the object has changed since its `metadata.resourceVersion`."""
        return await self._merge("merge_status", kind, f"{object_path(kind, namespace, name)}/status", patch)

    async def scale(self, kind: str, namespace: str, name: str, replicas: int, version: str) -> None:
        """Sets the replicas through the scale subresource, as `kubectl scale` does; 409 if the object has changed since
        this `metadata.resourceVersion`."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._merge("scale", kind, f"{object_path(kind, namespace, name)}/scale", patch)

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """Has its kubelet end a pod whose containers it would start again; the pod stays for its logs. A no-op if it,
        or the one with that uid, is gone."""
        patch = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}}
        try:
            await self._merge("end_pod", "Pod", object_path("Pod", namespace, name), patch)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def replace(self, body: Body) -> Body:
        """Replaces the object; 409 if it has changed since its `metadata.resourceVersion`."""
        path = body_path(body, body["metadata"]["name"])
        return await self._call("update", "PUT", body["kind"], path, body=body)

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> Body | None:
        """Deletes an object, with background propagation; a no-op if it, or the one with that uid, is gone already.
        Returns the object while finalizers or its grace period hold it."""
        self.check_fence()
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            left = await self._call(
                "delete", "DELETE", kind, object_path(kind, namespace, name), body=options
            )
        except ApiError as error:
            if error.status != 404 and not (uid is not None and error.status == 409):
                raise
            return None
        return left if "deletionTimestamp" in left.get("metadata", {}) else None

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        keep: Keep = dict,
    ) -> AsyncGenerator[Body, None]:
        """All objects of a kind, in one namespace or in all, fetched page by page; of each page only what `keep` leaves
        of its objects is in memory."""
        version, _ = KINDS[kind]
        page_size = _JOBS_PAGE if kind == "RLHFJob" else _METADATA_PAGE if metadata_only else _PAGE
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {"limit": str(page_size)} | {key: value for key, value in selectors.items() if value}
        accept = f"{_METADATA},{_JSON}" if metadata_only else _JSON
        path = object_path(kind, namespace, "")
        # Items of a list lack apiVersion and kind.
        named = {"apiVersion": version, "kind": kind.partition(".")[0]}
        while True:
            try:
                page = await self._call(
                    "list",
                    "GET",
                    kind,
                    path,
                    query=query,
                    accept=accept,
                    keep=lambda item: keep({**item, **named}),
                )
            except ApiError as error:
                if error.status or query["limit"] == "1":
                    raise
                # No answer in time: a page of large objects.
                query["limit"] = str(int(query["limit"]) // 4 or 1)
                continue
            items, more = page.get("items") or [], page.get("metadata", {}).get("continue")
            del page
            for item in items:
                yield item
            del items
            if not more:
                return
            query["continue"] = more

    async def table(self, kind: str, namespace: str | None = None, *, most: int) -> Body:
        """At most so many objects as rows, with the columns that `kubectl get` prints."""
        path, query = object_path(kind, namespace, ""), {"limit": str(most)}
        return await self._call("list", "GET", kind, path, query=query, accept=_TABLE)

    async def serves(self, kind: str) -> bool:
        """Discovery: true if the server serves the kind."""
        version, plural = KINDS[kind]
        try:
            resource_list = await self._call("get", "GET", "APIResourceList", group_path(version))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == plural for resource in resource_list["resources"])

    async def _change(
        self, verb: str, method: str, body: Body, tail: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> Body:
        self.check_fence()
        query = {"fieldManager": FIELD_MANAGER, **({"force": "true"} if method == "PATCH" else {}), **more}
        content = APPLY if method == "PATCH" else _JSON
        path = body_path(body, tail)
        return await self._call(verb, method, body["kind"], path, query=query, body=body, content=content)

    async def _merge(self, verb: str, kind: str, path: str, patch: Body) -> Body:
        self.check_fence()
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call(verb, "PATCH", kind, path, query=query, body=patch, content=_MERGE)

    def check_fence(self) -> None:
        """Raises ApiError unless this process may write."""
        if not self.fence():
            raise ApiError(
                0, "NotLeading", "this replica may not change anything, as it no longer holds the lease"
            )

    async def _call(
        self,
        verb: str,
        method: str,
        kind: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Body | None = None,
        content: str = _JSON,
        accept: str = _JSON,
        keep: Keep | None = None,
    ) -> Body:
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": FIELD_MANAGER}
        url = self.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        sent_body = as_yaml(body) if body is not None and content == APPLY else body
        started, status, sent = time.monotonic(), 0, self.clock.local()
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS) as deadline:
                await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
                response = await self._client.rest_client.request(
                    method, url, headers=headers, body=sent_body
                )
                self.clock.observe_date_header(response.headers.get("Date", ""), sent)
                if keep is not None and response.status == 200:
                    text, answer = b"", await _read_page(response.response, keep, deadline)
                else:
                    text = await response.read()
                    answer = _decode(text)
                status = response.status
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            problem = str(error) or f"no answer within {_DEADLINE_SECONDS:g} s"
            raise ApiError(0, type(error).__name__, f"{method} {path}: {problem}") from None
        finally:
            self._observe(verb, kind.partition(".")[0], status, time.monotonic() - started)
        if 200 <= status < 300 and answer is not None:
            return answer
        details = answer or {"message": text[:200].decode(errors="replace")}
        raise refusal(status, details, f"{method} {path}", response.headers.get("Retry-After"), kind)


async def _read_page(response: aiohttp.ClientResponse, keep: Keep, deadline: asyncio.Timeout) -> Body | None:
    """The list, None if it is none. A page of the largest jobs takes seconds: the deadline is extended while it comes,
    and what waits for the loop has its turn between its parts."""
    page, now = Page(keep), asyncio.get_running_loop().time
    last = now() + _PAGE_SECONDS
    try:
        async with response:
            async for data in response.content.iter_chunked(_CHUNK):
                page.feed(data)
                deadline.reschedule(min(now() + _DEADLINE_SECONDS, last))
                await asyncio.sleep(0)
        answer = page.end()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _proxy(host: str) -> str | None:
    """The proxy of a URL, by HTTPS_PROXY and NO_PROXY."""
    url = urlsplit(host)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)


def _decode(text: bytes) -> Body | None:
    """None unless the text is a JSON object: it may come from a proxy in front of the API server."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None

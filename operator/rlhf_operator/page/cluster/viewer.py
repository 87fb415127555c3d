"""One viewer: asks the API server with the viewer's own token, and with nothing else, what may be shown."""

import asyncio
import hashlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import from_cluster
from rlhf_api.manifest.runtime import parse_runtime, with_runtime
from rlhf_api.sections.pods import combine
from rlhf_api.spec import Spec

from ...kube.api import Api
from ...kube.api_error import ApiError
from ..refusal import Refusal
from .fresh_replies import FreshReplies
from .hidden import Hidden
from .job_run import Grant
from .jobs_table import Listed, read_columns, read_rows, summarize
from .keys import Access, check_store, choose_access

MOST_JOBS = 1000
MOST_NAMESPACES = 50
"""That are listed one by one, for viewers who may not list all at once."""
_MOST_PLACES = 20 * MOST_JOBS
_Places = tuple[str, ...]


class Viewer:
    """Keeps the API server's answers to one token for as long as they are fresh."""

    def __init__(self, token: str, api: Api, namespaces: Sequence[str] = ()) -> None:
        """`namespaces`: those that are tried for whoever may not list the jobs of all."""
        self.owner = hashlib.sha256(token.encode()).digest()
        self._api, self._namespaces = api, tuple(namespaces)
        self._jobs: dict[str, Listed] = {}
        self._lists = FreshReplies[_Places, dict[str, Any]](MOST_NAMESPACES)
        self._grants = FreshReplies[str, Grant](MOST_JOBS)
        self._specs: dict[str, tuple[int, Spec]] = {}
        self._lock = asyncio.Lock()
        self.under_way = 0
        """Requests of this viewer that are being answered."""

    async def close(self) -> None:
        await self._api.close()

    async def list_jobs(self, named: Sequence[str] = ()) -> dict[str, Any]:
        """`/runs`: the jobs of all namespaces, or of those that the viewer names and may list. Raises Refusal."""
        places = tuple(dict.fromkeys(named))[:MOST_NAMESPACES]
        async with self._lock:
            return await self._lists.get(places, self._list)

    async def _list(self, named: _Places) -> dict[str, Any]:
        tables, refused = list[Mapping[str, Any]](), list[str]()
        is_wide = (whole := await self._table(None)) is not None
        if whole is not None:
            tables.append(whole)
        else:
            for namespace in dict.fromkeys((*named, *self._namespaces)):
                table = await self._table(namespace)
                if table is not None:
                    tables.append(table)
                elif namespace in named:
                    refused.append(namespace)
        jobs = [job for table in tables for job in read_rows(table)][:MOST_JOBS]
        if len(self._jobs) > _MOST_PLACES:
            self._jobs.clear()
        self._jobs |= {job.id: job for job in jobs}
        columns = read_columns(tables[0]) if tables else []
        listed = sorted(jobs, key=lambda job: job.created, reverse=True)
        return {
            "runs": [summarize(job, columns) for job in listed],
            "columns": columns,
            "asksNamespaces": not is_wide,
            "refused": refused,
        }

    async def _table(self, namespace: str | None) -> Mapping[str, Any] | None:
        """None if the viewer may not list the jobs there."""
        try:
            return await self._api.table("RLHFJob", namespace, most=MOST_JOBS)
        except ApiError as error:
            if error.status == 403:
                return None
            raise as_refusal(error) from None

    async def grant(self, id: str) -> Grant:
        """The viewer's rights to a job now. Raises Refusal for one that the viewer may not, or that is not there:
        the text is the same for both."""
        async with self._lock:
            return await self._grants.get(id, self._ask)

    async def _ask(self, id: str) -> Grant:
        refusal = Refusal(
            404, "there is no such job, or you may not get it; the list has those that you may see"
        )
        if (job := self._jobs.get(id)) is None:
            raise refusal
        try:
            body = await self._api.get("RLHFJob", job.namespace, job.name)
        except ApiError as error:
            raise refusal if error.status in (403, 404) else as_refusal(error) from None
        if body["metadata"]["uid"] != job.uid:
            raise refusal
        try:
            access: Access | str = await self._access(id, body)
        except Hidden as hidden:
            access = str(hidden)
        return Grant(id, self.owner, body, access)

    async def _access(self, id: str, body: Mapping[str, Any]) -> Access:
        """Finds the access to the job's store. Raises Hidden, and Refusal if the API server fails."""
        namespace = body["metadata"]["namespace"]
        spec = await self._spec(id, body)
        check_store(spec.checkpoint.store)  # before any Secret is read
        environment = dict[str, str]()
        for name in combine(spec.pods, spec.trainer.pods).secrets:
            secret = await self._get("Secret", namespace, name, "has the keys of its store")
            for key, value in (secret.get("data") or {}).items():
                environment[key] = b64decode(value).decode(errors="replace").strip()
        return choose_access(spec.checkpoint.store, {**environment, **spec.env})

    async def _spec(self, id: str, body: Mapping[str, Any]) -> Spec:
        """The job's spec over that of its runtime."""
        generation = body["metadata"].get("generation", 0)
        known, spec = self._specs.get(id, (None, None))
        if spec is not None and known == generation:
            return spec
        try:
            spec = await asyncio.to_thread(lambda: from_cluster(body).spec)
            if (named := spec.runtime) is not None:
                where = body["metadata"]["namespace"] if named.kind == "RLHFRuntime" else None
                runtime = await self._get(named.kind, where, named.name, "has settings of its pods")
                return with_runtime(spec, parse_runtime(runtime))
        except InvalidJob as error:
            raise Hidden(f"its spec cannot be read: {error.problems[0]}") from None
        if len(self._specs) >= MOST_JOBS:
            self._specs.clear()
        self._specs[id] = generation, spec
        return spec

    async def _get(self, kind: str, namespace: str | None, name: str, purpose: str) -> Mapping[str, Any]:
        try:
            return await self._api.get(kind, namespace, name)
        except ApiError as error:
            if error.status == 403:
                raise Hidden(f"you may not read {kind} {name}, which {purpose}") from None
            if error.status == 404:
                raise Hidden(f"there is no {kind} {name}, which {purpose}") from None
            raise as_refusal(error) from None


def as_refusal(error: ApiError) -> Refusal:
    """The reply to a viewer whose token is nobody's, or for whom the API server does not answer."""
    if error.status == 401:
        return Refusal(401, "the API server does not know this token, or it has expired; give another")
    if error.status == 429:
        return Refusal(429, "the API server has too many requests; the page goes on trying")
    if error.not_served:
        return Refusal(404, "the API server does not know RLHFJobs")
    return Refusal(502, f"the API server does not answer ({error.status or error.reason})")

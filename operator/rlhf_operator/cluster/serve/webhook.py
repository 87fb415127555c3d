"""Optional admission webhook: rejects an invalid job at `kubectl apply`, with the field and the fix."""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.manifest.load import from_cluster, runnable
from rlhf_api.rules.check import CHANGEABLE, check_change
from rlhf_api.spec import Spec

from ...job.names import PRIORITY, QUEUE
from ...job.snapshot import Job
from ...status.condition import refused
from ..config.settings import Settings
from ..objects.limit_checks import check, lacks_queue, wrong_priority
from ..objects.pinned import Pinned
from ..objects.pod_sets import too_many_sets
from .probes import listen
from .turns import TooManyWaiting, Turns

log = logging.getLogger(__name__)

_SETTINGS = web.AppKey("settings", Settings)
_TURNS = web.AppKey("turns", Turns)
_WORKER = ThreadPoolExecutor(1, thread_name_prefix="webhook")
"""Validates beside the event loop of the reconciles: the largest spec takes a second. One at a time, since several
would share the interpreter with that loop."""
_CHANGEABLE = {Spec.model_fields[name].alias or name for name in CHANGEABLE}
_LONGEST = 2000
_REQUEST_BYTES = 4 << 20  # an object of 1.5 MiB at most, twice
_START_BYTES = 4 << 10
_LONGEST_SECONDS, _BODY_SECONDS = 30.0, 2.0


def review(request: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The answer to an AdmissionReview (admission.k8s.io/v1). A job that is being deleted is always allowed."""
    admission = request["request"]
    answer: dict[str, Any] = {"uid": admission["uid"], "allowed": True}
    body = admission.get("object")
    stays = body is not None and "deletionTimestamp" not in body.get("metadata", {})
    if stays and (problems := _problems(body, admission.get("oldObject"), settings)):
        message = "; ".join(map(str, problems))[:_LONGEST]
        answer |= {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": message}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


def _problems(
    body: Mapping[str, Any], before: Mapping[str, Any] | None, settings: Settings
) -> Sequence[Problem]:
    """Problems of a job, or of its change from the stored one."""
    if before is not None and _asks_for(before) == _asks_for(body):
        return ()
    spec, problems = _judged(body, settings)
    if before is None:
        return problems
    if problems or spec is None:
        _, known = _judged(before, settings) if _keeps_running(before, body) else (None, ())
        return [problem for problem in problems if problem not in known]
    if _failed_by_its_spec(before):
        return ()
    try:
        return check_change(from_cluster(before).spec, spec)
    except InvalidJob:
        return ()  # it was invalid before: any change may correct it


def _judged(body: Mapping[str, Any], settings: Settings) -> tuple[Spec | None, Sequence[Problem]]:
    """A job's spec, None if it is invalid, and its problems by today's rules and limits."""
    try:
        spec = runnable(body).spec
        pinned = Pinned.make(body["metadata"]["name"], spec, settings.defaults)
        check(settings.limits, pinned, whole=spec.runtime is None)
    except InvalidJob as error:
        return None, error.problems
    labels = body["metadata"].get("labels", {})
    label_problems = (
        lacks_queue(settings.limits, labels.get(QUEUE)),
        too_many_sets(spec, labels.get(QUEUE)),
        wrong_priority(settings.limits, labels.get(PRIORITY)),
    )
    return spec, [problem for problem in label_problems if problem]


def _failed_by_its_spec(body: Mapping[str, Any]) -> bool:
    status = Job.of(body).status
    return status is not None and refused(status)


def _asks_for(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """Parts of a job that are validated. A change of others, such as finalizers, is not: the stored job may come from a
    release with other rules."""
    labels = body["metadata"].get("labels", {})
    return body.get("spec"), labels.get(QUEUE), labels.get(PRIORITY)


def _keeps_running(before: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """True if a change sets only what may change while a job runs, and does not resume it. Such a change is refused for
    what it makes wrong alone: limits and rules may have become tighter since the job began."""
    resumed = before["spec"].get("suspend") and not body["spec"].get("suspend")
    return not resumed and _fixed(before) == _fixed(body)


def _fixed(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """Parts of a job that cannot change while it runs."""
    spec, *labels = _asks_for(body)
    generator = {key: value for key, value in (spec.get("generator") or {}).items() if key != "replicas"}
    return {key: spec[key] for key in spec if key not in _CHANGEABLE} | {"generator": generator}, *labels


class _Certificate:
    """TLS context of a server that reloads its certificate when the files change, as after a renewal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.context = self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"the webhook needs tls.crt and tls.key in {folder}: {error}") from None
        self.context.sni_callback = self._refresh

    def _load(self) -> ssl.SSLContext:
        self._changed = (self._folder / "tls.crt").stat().st_mtime_ns
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        return context

    def _refresh(self, connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        try:
            if (self._folder / "tls.crt").stat().st_mtime_ns != self._changed:
                self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            log.warning("cannot load the new certificate, still serving the old one: %s", error)
        connection.context = self._newest


async def serve(settings: Settings) -> web.AppRunner | None:
    """Listens, where the settings name a port.

    Raises:
        ValueError: the certificate is missing or none, or the port cannot be had.
    """
    if settings.webhook_port is None:
        return None
    context = _Certificate(Path(settings.webhook_certificates)).context
    app = web.Application()
    app[_SETTINGS], app[_TURNS] = settings, Turns()
    app.add_routes([web.post("/validate", _validate)])
    # A caller that has gone away waits for no turn.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await listen(runner, settings.webhook_port, context)
    return runner


async def _validate(request: web.Request) -> web.Response:
    """Answers a review. Only its beginning is read before its turn has come: what waits takes no memory."""
    try:
        async with asyncio.timeout(_timeout(request)):
            start = await _start(request)
            async with request.app[_TURNS].turn(_namespace(start)):
                body = await _rest(request, start)
                answer = await asyncio.get_running_loop().run_in_executor(
                    _WORKER, lambda: review(json.loads(body), request.app[_SETTINGS])
                )
    except TooManyWaiting:
        raise web.HTTPTooManyRequests(text="this namespace has too many jobs under review") from None
    except TimeoutError:
        raise web.HTTPServiceUnavailable(text="the review was not done in time") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise web.HTTPBadRequest(text=f"this is not an AdmissionReview: {error!r}") from None
    return web.json_response(answer)


def _timeout(request: web.Request) -> float:
    """Seconds for which the API server waits for an answer, which it says in the URL: `?timeout=5s`."""
    match = re.fullmatch(r"(\d{1,2})s", request.query.get("timeout", ""))
    return min(float(match[1]), _LONGEST_SECONDS) if match else _LONGEST_SECONDS


def _namespace(start: bytes) -> str:
    """The job's namespace, which the API server writes before the job; a quote in a text before it is escaped."""
    match = re.search(rb'"namespace":"([^"\\]{1,63})"', start)
    return match[1].decode(errors="replace") if match else ""


async def _start(request: web.Request) -> bytes:
    try:
        return await request.content.readexactly(_START_BYTES)
    except asyncio.IncompleteReadError as short:
        return short.partial


async def _rest(request: web.Request, start: bytes) -> bytes:
    """The whole body. Raises ValueError if it is too long or does not come."""
    body = bytearray(start)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for data in request.content.iter_any():
                body += data
                if len(body) > _REQUEST_BYTES:
                    raise ValueError(f"more than {_REQUEST_BYTES} bytes")
    except TimeoutError:
        raise ValueError(f"not complete within {_BODY_SECONDS:g} s") from None
    return bytes(body)

"""Authorizes readers of /metrics: a bearer token is reviewed by the API server, as by kube-rbac-proxy."""

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ...kube.api_error import ApiError

logger = logging.getLogger(__name__)

Review = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""`Api.review`."""
Handler = Callable[[web.Request], Awaitable[web.Response]]
PATH = "/metrics"
_ALLOWED_SECONDS = 60.0
"""Time for which a token that was allowed is not reviewed again."""
_MOST_TOKENS, _MOST_REVIEWS = 64, 8
"""Of tokens remembered; of reviews under way, which anybody can cause: beyond it the reply is 503."""


def authorized(handle: Handler, review: Review) -> Handler:
    """`handle` for those whose token may GET /metrics. 401 without a token or for one of nobody, 403 if it may not, 503
    where that cannot be told."""
    allowed, under_way = dict[bytes, float](), set[object]()

    async def answer(request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return _refusal(401, "needs the bearer token of an account that may get /metrics")
        key = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if allowed.get(key, 0.0) < time.monotonic():
            if len(under_way) >= _MOST_REVIEWS:
                return _refusal(503, "too many tokens are being reviewed")
            under_way.add(this := object())
            try:
                refused = await _refused(token, review)
            finally:
                under_way.discard(this)
            if refused is not None:
                return refused
            if len(allowed) >= _MOST_TOKENS:
                allowed.clear()
            allowed[key] = time.monotonic() + _ALLOWED_SECONDS
        return await handle(request)

    return answer


async def _refused(token: str, review: Review) -> web.Response | None:
    """The reply to a token that may not read; None if it may."""
    try:
        who = await review(_body("authentication.k8s.io/v1", "TokenReview", token=token))
        if not who.get("status", {}).get("authenticated"):
            return _refusal(401, "the token is nobody's")
        user = who["status"]["user"]
        # The user's fields have the same names in both, but for the name.
        about = {key: user[key] for key in ("uid", "groups", "extra") if key in user}
        attributes = {
            "user": user["username"],
            **about,
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        may = await review(_body("authorization.k8s.io/v1", "SubjectAccessReview", **attributes))
    except (ApiError, LookupError, TypeError, AttributeError) as error:
        logger.warning("a token for %s cannot be reviewed: %s", PATH, error)
        return _refusal(503, "the API server cannot be asked about the token; see the operator's log")
    if may.get("status", {}).get("allowed") is not True:
        return _refusal(403, f"{user['username']} may not get {PATH}: bind a ClusterRole that allows it")
    return None


def _body(version: str, kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": spec}


def _refusal(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.Response(status=status, text=f"{reason}\n", headers=headers)

"""Keeps others out of a page: the name by which a browser called, a token, and what a document may load."""

import hmac
import re
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LOOPBACK = re.compile(r"(?i)(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?")


def is_loopback(host: str) -> bool:
    """True for a Host header that names this machine: a name of another site that resolves to 127.0.0.1 does not."""
    return bool(_LOOPBACK.fullmatch(host))


def has_token(authorization: str, token: str) -> bool:
    """True for a header with the token; the time to compare says nothing about it."""
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), token.encode())
    return right and scheme.lower() == "bearer"


def protect(is_own: Callable[[str], bool]) -> Middleware:
    """Middleware: 421 for a Host header that `is_own` does not know, errors as JSON, and HEADERS always."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        if not is_own(request.headers.get("Host", "")):
            response = web.json_response({"error": "this page does not answer to this name"}, status=421)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.json_response({"error": error.reason}, status=error.status)
        response.headers.update(HEADERS)
        return response

    return answer


def require_token(token: str, prefix: str) -> Middleware:
    """Middleware: 401 without the token for paths of the `prefix`."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(prefix) and not has_token(request.headers.get("Authorization", ""), token):
            message = (
                "needs the token of the address that `rlhf ui` printed, as `Authorization: Bearer TOKEN`"
            )
            return web.json_response({"error": message}, status=401)
        return await handler(request)

    return answer

"""Keeps others out of a page on loopback: a token, the name by which a browser called, and what a document may load."""

import hmac
import re

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


def protect(token: str, prefix: str) -> Middleware:
    """Middleware: 421 for another host's name, 401 without the token for paths of the `prefix`, and HEADERS always."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        if not is_loopback(request.headers.get("Host", "")):
            response = web.json_response(
                {"error": "this page answers to 127.0.0.1 and localhost"}, status=421
            )
        elif request.path.startswith(prefix) and not has_token(
            request.headers.get("Authorization", ""), token
        ):
            message = (
                "needs the token of the address that `rlhf ui` printed, as `Authorization: Bearer TOKEN`"
            )
            response = web.json_response({"error": message}, status=401)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.json_response({"error": error.reason}, status=error.status)
        response.headers.update(HEADERS)
        return response

    return answer

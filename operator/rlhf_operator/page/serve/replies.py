"""Replies of the page's servers: JSON with a tag, errors as a line, and the built files."""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host import strict_json

from ..answers.paths import VERSION
from ..refusal import Refusal
from .static_files import MISSING, find_assets

log = logging.getLogger(__name__)


async def reply_with(
    request: web.Request, answer: Callable[[], Awaitable[Mapping[str, Any]]]
) -> web.Response:
    """The JSON of an answer, 304 for one that the browser has: what a file holds never ends the server, nor reaches the
    page as a traceback."""
    try:
        status, content = 200, await answer()
    except Refusal as error:
        status, content = error.status, {"error": str(error)}
    except InvalidJob as error:
        status, content = 404, {"error": "; ".join(map(str, error.problems))}
    except Exception as error:
        log.warning("%s cannot be answered: %s: %s", request.path, type(error).__name__, error)
        status, content = 500, {"error": f"cannot be read: {type(error).__name__}"}
    body = strict_json.dumps(content).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-store" if status != 200 else "private, no-cache"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 200 and request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


async def send_asset(request: web.Request) -> web.Response:
    """A file of the built page."""
    assets = find_assets()
    if not assets:
        return web.Response(status=404, text=f"{MISSING}. The API is below {VERSION}.\n")
    asset = assets.get(request.path)
    if asset is None:
        return web.Response(status=404, text="no such file\n")
    return web.Response(
        body=asset.file.read_bytes(),
        headers={"Content-Type": asset.type, "Cache-Control": "no-cache"},
    )

"""Serves a role's HTTP application until its process is told to end."""

import logging

from aiohttp import web

from .http import raise_file_limit

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that wait to be accepted: a step's responses may all end at once."""


def serve(app: web.Application, host: str, port: int) -> None:
    """Serves until SIGTERM. Raises OSError where the port is taken, and what the start of `app` raises."""
    raise_file_limit()  # the trainer may wait for many messages at once
    log.info("loaded; answering on %s:%d", host, port)
    web.run_app(
        app,
        host=host,
        port=port,
        print=None,
        access_log=None,
        backlog=BACKLOG,
        shutdown_timeout=2,
        handler_cancellation=True,
    )

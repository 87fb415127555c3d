"""Listens on a port of the operator's pod."""

import ssl

from aiohttp import web


async def listen(runner: web.AppRunner, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Serves the runner's application on the port until the caller cleans the runner up.

    Raises:
        ValueError: the port is taken, or this process may not have it.
    """
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise ValueError(f"cannot listen on port {port}: {error.strerror or error}") from None

"""The process of a cluster's page: has no account, and serves until it is told to end."""

import logging
import os
import sys

from aiohttp import web

from ...kube.calls import allow_deep_json
from .api_server import connect
from .application import make_application
from .settings import drop_keys, read_settings

_CLOSE_SECONDS = 2.0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    drop_keys()
    allow_deep_json()
    try:
        settings = read_settings(os.environ)
    except ValueError as error:
        logging.getLogger(__name__).error("%s", error)
        return 2
    application = make_application(settings, lambda token: connect(settings, token))
    web.run_app(
        application,
        port=settings.port,
        access_log=None,  # requests name jobs, and their headers have tokens
        print=None,
        shutdown_timeout=_CLOSE_SECONDS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m rlhf_operator.cluster`: the operator's entry point in its pod."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack

from rlhf_api.host.printing import write_line

from ..kube.api import Api
from .act.recorder import Recorder
from .config.settings import Settings
from .manager import Process
from .reconcile import Reconciler
from .serve import logs, probes, webhook
from .telemetry import Telemetry
from .watching.cache import Cache

logger = logging.getLogger("rlhf_operator.cluster")

EXIT_FAILED, EXIT_SETTINGS = 1, 2


def main() -> int:
    """Exit status: 0 after SIGTERM, 2 for invalid settings, 1 for an unrecoverable error."""
    try:
        settings = Settings.read()
        logs.set_up(settings.log_format)
        asyncio.run(operate(settings))
    except ValueError as error:
        write_line(f"rlhf-operator: {error}", sys.stderr)
        return EXIT_SETTINGS
    except ExceptionGroup as group:
        for failure in group.exceptions:
            logger.critical("cannot go on, and ends: %s", failure, exc_info=failure)
        return EXIT_FAILED
    return 0


async def operate(settings: Settings) -> None:
    """Serves probes, and runs as leader or on standby, until SIGTERM.

    Raises:
        ValueError: a setting is invalid or names something missing.
        ExceptionGroup: an unrecoverable error.
    """
    telemetry = Telemetry()
    async with AsyncExitStack() as closing:
        api = await closing.enter_async_context(await Api.connect(telemetry.api_call))
        cache = Cache()
        reconciler = Reconciler(settings, api, cache, Recorder(api), telemetry)
        closing.push_async_callback(reconciler.close)
        process = Process(settings, api, cache, telemetry, reconciler.reconcile)
        server = await probes.serve(settings, telemetry, api.review, ready=process.ready, alive=process.alive)
        closing.push_async_callback(server.cleanup)
        if (hook := await webhook.serve(settings)) is not None:
            closing.push_async_callback(hook.cleanup)
        await process.run()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m rlhf_operator.cluster`: the operator in its pod, from its settings to its end."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack

from . import logs, probes, webhook
from .api import Api
from .cache import Cache
from .manager import Process
from .reconcile import Reconciler
from .recorder import Recorder
from .settings import Settings
from .telemetry import Telemetry

logger = logging.getLogger("rlhf_operator.cluster")

EXIT_FAILED, EXIT_SETTINGS = 1, 2


def main() -> int:
    """The exit status: 0 after SIGTERM, 2 where the settings are wrong, 1 where it could not go on."""
    try:
        settings = Settings.read()
        logs.set_up(settings.log_format)
        asyncio.run(operate(settings))
    except ValueError as error:
        print(f"rlhf-operator: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except ExceptionGroup as group:
        for failure in group.exceptions:
            logger.critical("cannot go on, and ends: %s", failure, exc_info=failure)
        return EXIT_FAILED
    return 0


async def operate(settings: Settings) -> None:
    """Answers probes all the time, and leads while nobody else does, until SIGTERM.

    Raises:
        ValueError: something that the settings name is missing or wrong.
        ExceptionGroup: what it can't go on without failed.
    """
    telemetry = Telemetry()
    async with AsyncExitStack() as closing:
        api = await closing.enter_async_context(await Api.connect(telemetry.api_call))
        cache = Cache()
        reconciler = Reconciler(settings, api, cache, Recorder(api), telemetry)
        closing.push_async_callback(reconciler.close)
        process = Process(settings, api, cache, telemetry, reconciler.reconcile)
        server = await probes.serve(settings, telemetry, process.ready, process.alive)
        closing.push_async_callback(server.cleanup)
        if (hook := await webhook.serve(settings)) is not None:
            closing.push_async_callback(hook.cleanup)
        await process.run()


if __name__ == "__main__":
    sys.exit(main())

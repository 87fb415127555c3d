"""Liveness probes of serving processes: kills a process that was ready and hangs, as a kubelet would."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from rlhf_api.contract.run import listens
from rlhf_api.roles import LIVE_FAILURES, LIVE_SECONDS

from ..supervision.role_client import ControlClient
from .processes import Supervised


async def end_the_hung(processes: Sequence[Supervised], control: ControlClient) -> None:
    """Probes each role's liveness path every LIVE_SECONDS, while it is awaited, and kills a process that failed
    LIVE_FAILURES times in a row; it is restarted like any other that ends. Trainers are not probed: a computing rank
    does not answer."""
    failures: Counter[str] = Counter()
    while True:
        await asyncio.sleep(LIVE_SECONDS)
        probed = [
            (process, process.uid, path)
            for process in processes
            if process.running and process.ready and listens(process.process)
            if (path := process.process.role.row.live)
        ]
        answers = await asyncio.gather(
            *(control.lives(process.address + path) for process, _, path in probed)
        )
        for (process, uid, _), lives in zip(probed, answers, strict=True):
            failures[uid] = 0 if lives else failures[uid] + 1
            if failures[uid] == LIVE_FAILURES and process.running and process.uid == uid:
                process.kill(f"hung: it gave no sign of life for {LIVE_FAILURES * LIVE_SECONDS:g} s")

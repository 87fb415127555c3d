"""Answers requests from the stores of jobs on several threads, so that a slow store holds up its own viewer alone."""

import secrets
import shutil
import threading
import time
from asyncio import get_running_loop
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..answers.paths import answer
from ..folder.run_folder import RunFolder
from ..refusal import Query
from .job_run import Grant, JobRun

THREADS = 8
MOST_BYTES = 256 << 20
"""Of figures and samples in memory, of all jobs but those that are being read."""
UNUSED_SECONDS = 600.0
"""After so long without a request, what was read of a job is deleted."""


class Granted:
    """The runs that one request may read, as a catalog has them."""

    def __init__(self, runs: Mapping[str, JobRun]) -> None:
        self._runs = runs

    def runs(self) -> Sequence[RunFolder]:
        return list(self._runs.values())

    def run(self, id: str) -> RunFolder | None:
        return self._runs.get(id)

    def load(self, run: RunFolder) -> None:
        run.metrics.refresh()
        run.evaluations.refresh()


class Readers:
    """The runs in memory, each of one viewer and one job."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for copies of stores' files."""
        self._folder = folder
        self._pool = ThreadPoolExecutor(THREADS, "job-reader")
        self._lock = threading.Lock()
        self._runs = OrderedDict[tuple[bytes, str], tuple[float, JobRun]]()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def answer(self, grants: Sequence[Grant], path: str, query: Query) -> dict[str, Any]:
        """The answer to a path about these jobs. Raises Refusal."""
        return await get_running_loop().run_in_executor(self._pool, self._answer, grants, path, query)

    def _answer(self, grants: Sequence[Grant], path: str, query: Query) -> dict[str, Any]:
        runs = {grant.id: self._use(grant) for grant in grants}
        try:
            with ExitStack() as locked:
                for id in sorted(runs):  # two requests take locks in the same order
                    locked.enter_context(runs[id].lock)
                for grant in grants:
                    runs[grant.id].update(grant)
                return answer(Granted(runs), path, query)
        finally:
            with self._lock:
                for run in runs.values():
                    run.readers -= 1
            self.forget_unused()

    def _use(self, grant: Grant) -> JobRun:
        key = grant.owner, grant.id
        with self._lock:
            known = self._runs.pop(key, None)
            run = known[1] if known else JobRun(grant.id, self._folder / secrets.token_hex(16))
            run.readers += 1
            self._runs[key] = time.monotonic(), run
        return run

    def forget_unused(self) -> None:
        """Deletes what was read of the runs that were not used for longest, as far as nobody reads them now."""
        with self._lock:
            for key, (used, run) in list(self._runs.items()):
                is_old = time.monotonic() - used > UNUSED_SECONDS
                is_full = sum(each.memory_bytes for _, each in self._runs.values()) > MOST_BYTES
                if (is_old or is_full) and not run.readers:
                    run.forget()
                    del self._runs[key]

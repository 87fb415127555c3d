"""Account of a job's prompts and tokens, read from outside: its store, its metrics, its generators' counters."""

import json
import re
import urllib.request
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import cast

import psutil
import pyarrow.parquet as parquet
from tests.support.run_processes import processes

from rlhf_api.sections.replay import EPISODES
from rlhf_store.archive import Archive

_GENERATED = re.compile(rb"^vllm:generation_tokens_total\S* ([\d.e+]+)", re.MULTILINE)


class Prompts:
    """Episodes of the newest snapshots, each prompt with the one that trained on it."""

    def __init__(self, url: str, per_step: int) -> None:
        self._archive, self._per_step = Archive(url), per_step
        self._read: set[str] = set()
        self._trained: dict[str, int] = {}

    def check(self) -> tuple[int, int]:
        """Prompts that the newest snapshot should have trained on and has not, and those that two episodes have."""
        snapshot = self._archive.open(self._archive.entries()[-1])
        ledger = cast(dict[str, list[tuple[int, int]]], snapshot.state["ledger"])
        trained = sum(end - start for start, end in ledger["trained"])
        twice = 0
        for name in snapshot.blobs:
            digest = snapshot.manifest.blobs[name].digest
            if not name.startswith(EPISODES) or digest in self._read:
                continue
            self._read.add(digest)
            table = parquet.read_table(BytesIO(snapshot.blob(name)), columns=["episode", "prompt_id"])
            for number, prompt in set(
                zip(*(table[key].to_pylist() for key in ("episode", "prompt_id")), strict=True)
            ):
                twice += self._trained.setdefault(prompt, number) != number
        return snapshot.step * self._per_step - trained, twice


class Tokens:
    """Tokens that the generators have sampled so far, those of servers that are gone included."""

    def __init__(self, workdir: Path, counters: Callable[[], Mapping[Hashable, int]]) -> None:
        """`counters`: the present count of each server that answers."""
        self._workdir, self._counters = workdir, counters
        self._counted: dict[Hashable, int] = {}

    def generated(self) -> int:
        """Whoever does not answer has what it had."""
        self._counted |= self._counters()
        return sum(self._counted.values())

    def trained(self, after: int, until: int) -> int:
        """Tokens of the steps in (after, until]."""
        steps = metrics(self._workdir)
        return sum(int(steps[step]["tokens"]) for step in range(after + 1, until + 1))


def of_processes(workdir: Path) -> dict[Hashable, int]:
    """The counts of the servers of `rlhf run`."""
    counts: dict[Hashable, int] = {}
    for process in processes(workdir):
        if "rlhf_trainer.engines.vllm.serve.server" in " ".join(_command(process)[:4]):
            environ = process.environ()
            request = urllib.request.Request(
                f"http://127.0.0.1:{environ['RLHF_PORT']}/metrics",
                headers={"Authorization": f"Bearer {environ['RLHF_TOKEN']}"},
            )
            with suppress(OSError), urllib.request.urlopen(request, timeout=2) as answer:
                counts[process.pid] = sampled(answer.read())
    return counts


def sampled(page: bytes) -> int:
    """Tokens by a page of vLLM's metrics."""
    return int(sum(map(float, _GENERATED.findall(page))))


def metrics(workdir: Path) -> dict[int, dict[str, float]]:
    """The lines of metrics.jsonl by their step; a line that is being written is left out."""
    rows = {}
    try:
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[int(row["step"])] = row
    return rows


def newest(workdir: Path) -> int:
    """The last step that is done; 0 before the first."""
    return max(metrics(workdir), default=0)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []

"""How the operator carries many jobs: time until all pods exist, against the bare creation of the same objects.

.venv/bin/python benchmarks/operator_scale.py --jobs 10 100 1000

A control plane of this benchmark's own, whose nodes exist on paper. Bare: the same objects made by the same client, as
many at a time as the operator has workers. Ratios within one run; seconds are this machine's. Prints a table.
"""

import argparse
import asyncio
import copy
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes.aio.client import CoreV1Api
from kubernetes.aio.client.api_client import ApiClient

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kube.jobs import PPO
from tests.support.cluster import ControlPlane, control_plane
from tests.support.fake_nodes import FakeNodes
from tests.support.kube import eventually, kubectl, new_namespace
from tests.support.operator import TOKEN_KEY, Operator, operator

from rlhf_api.crd import document
from rlhf_api.manifest import parse
from rlhf_api.run import replicas, roles_of
from rlhf_operator.cluster.api import Api
from rlhf_operator.cluster.manager import WORKERS
from rlhf_operator.cluster.objects import companions, owned, token_secret
from rlhf_operator.cluster.pinned import Pinned
from rlhf_operator.cluster.pod import build_pod
from rlhf_operator.cluster.settings import Settings
from rlhf_operator.cluster.snapshot import Job

SETTINGS = Settings(trainer_image="trainer", token_key=TOKEN_KEY.encode())
DEADLINE_SECONDS = 1200.0
QUIET_SECONDS = 60.0
"""How long the jobs are watched after all their pods exist."""


def manifest(number: int) -> dict[str, Any]:
    made = copy.deepcopy(PPO)
    made["metadata"]["name"] = f"job-{number}"
    return made


def objects(job: Job) -> list[dict[str, Any]]:
    """All that the operator makes for a job."""
    spec = parse(
        {key: job.body[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": job.name}}
    ).spec
    pinned = Pinned.make(job.name, spec, SETTINGS.defaults)
    made = {"config_name": pinned.name, "uid": job.uid}
    pods = [
        build_pod(pinned.config, role, index, attempt=1, resume=False, defaults=pinned.defaults, **made)
        for role in roles_of(spec)
        for index in range(replicas(spec, role))
    ]
    bodies = [token_secret(SETTINGS.token_key, job), *companions(pinned, "default"), *pods]
    return [owned(body, job) for body in bodies]


async def at_once(calls: Iterable[Awaitable[Any]]) -> None:
    """As many as the operator has workers."""
    free = asyncio.Semaphore(WORKERS)

    async def one(call: Awaitable[Any]) -> None:
        async with free:
            await call

    await asyncio.gather(*(one(call) for call in calls))


async def make_jobs(namespace: str, count: int, *, suspended: bool) -> list[Job]:
    made = []

    async def make(number: int) -> None:
        body = manifest(number)
        body["metadata"]["namespace"] = namespace
        if suspended:
            body["spec"]["suspend"] = True
        made.append(Job.of(await api.create(body)))

    async with await Api.connect() as api:
        await at_once(make(number) for number in range(count))
    return made


async def make_bare(jobs: list[Job]) -> float:
    """Seconds that it takes to create everything, with nothing decided."""
    bodies = [body for job in jobs for body in objects(job)]
    async with await Api.connect() as api:
        began = time.monotonic()
        await at_once(api.apply(b) if b["kind"] not in ("Pod", "Secret") else api.create(b) for b in bodies)
        return time.monotonic() - began


async def pods_exist(namespace: str, count: int) -> None:
    """Asks as rarely and cheaply as can be: this machine's cores are what is shared."""
    async with asyncio.timeout(DEADLINE_SECONDS), await Api.connect() as api:
        core = CoreV1Api(ApiClient(api.configuration))
        async with core.api_client:
            while True:
                page = await core.list_namespaced_pod(namespace, limit=1)
                if len(page.items) + (page.metadata.remaining_item_count or 0) >= count:
                    return
                await asyncio.sleep(0.2)


def metrics(running: Operator) -> dict[str, float]:
    """Every series, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=10) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines)}


def quantile(seen: dict[str, float], share: float) -> float:
    """Upper bound, in seconds, of the histogram's bucket that holds this share of reconciles."""
    buckets = {}
    for key, value in seen.items():
        if found := re.match(r'rlhf_operator_reconcile_seconds_bucket\{le="([^"]+)",outcome="done"\}', key):
            buckets[float(found[1])] = value
    total = buckets[float("inf")]
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total)


@contextmanager
def connected(plane: ControlPlane) -> Iterator[None]:
    os.environ["KUBECONFIG"] = str(plane.kubeconfig)
    yield
    del os.environ["KUBECONFIG"]


def measure(plane: ControlPlane, folder: Path, count: int) -> str:
    with new_namespace(plane.kubeconfig) as namespace:
        jobs = asyncio.run(make_jobs(namespace, count, suspended=True))
        bare = asyncio.run(make_bare(jobs))
    with new_namespace(plane.kubeconfig) as namespace:
        asyncio.run(make_jobs(namespace, count, suspended=False))
        with operator(plane.kubeconfig, folder / f"operator-{count}", namespace) as running:
            eventually(lambda: "leads as" in running.said(), "the operator leads")
            began = time.monotonic()
            asyncio.run(pods_exist(namespace, 4 * count))
            took = time.monotonic() - began
            time.sleep(QUIET_SECONDS)
            seen = metrics(running)
    calls = sum(value for key, value in seen.items() if key.startswith("rlhf_operator_api_calls_total"))
    memory = seen["process_resident_memory_bytes"] / 2**20
    return (
        f"| {count} | {bare:.1f} | {took:.1f} | {took / bare:.2f} | {1000 * quantile(seen, 0.5):.0f} | "
        f"{1000 * quantile(seen, 0.99):.0f} | {calls / count:.1f} | {memory:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()
    print(
        "| jobs | bare s | operator s | ratio | reconcile p50 ms <= | p99 ms <= | API calls per job | memory MiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name, "plane")) as plane, connected(plane):
        kubectl(plane.kubeconfig, "create", "-f", "-", input=document(20))
        with FakeNodes(plane, address="127.7.0.9"):
            for count in options.jobs:
                print(measure(plane, Path(name), count), flush=True)


if __name__ == "__main__":
    main()

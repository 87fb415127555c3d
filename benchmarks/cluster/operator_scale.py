"""Scale of the operator: time until all pods exist, against the bare creation of the same objects.

.venv/bin/python benchmarks/cluster/operator_scale.py --jobs 10 100 1000
.venv/bin/python benchmarks/cluster/operator_scale.py --jobs 1000 --ended 9000
.venv/bin/python benchmarks/cluster/operator_scale.py --jobs 100 --hostile 100

A control plane of its own for each measurement, whose nodes exist on paper, and one trainer that talks for all jobs.
Bare: the same objects made by the same client, as many at a time as the operator has workers. Ratios within one
run; seconds are this machine's. Prints a table, and each kind of API call for a job that runs. The operator's own
milliseconds of processor time a job are until all pods exist, and until the end. `--ended` adds jobs that have
succeeded before; `--quiet` is for how long the jobs are followed after all their pods exist. `--hostile` adds another
tenant's jobs that are as large as the API server stores, and compares with the same jobs alone.
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
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
from kubernetes.aio.client import CoreV1Api
from kubernetes.aio.client.api_client import ApiClient

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.api_server.oldest.jobs import PPO
from tests.support.kubernetes.cluster import control_plane
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually, kubectl, new_namespace
from tests.support.kubernetes.operator import TOKEN_KEY, Operator, operator, talking_trainer

from rlhf_api.contract.run import replicas, roles_of
from rlhf_api.manifest.load import parse
from rlhf_api.schema.crd import document
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.manager import WORKERS
from rlhf_operator.cluster.objects.companions import companions, owned, token_secret
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.job.snapshot import Job
from rlhf_operator.job.trimmed import trim
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.status.condition import observed
from rlhf_operator.status.job_status import first_status

SETTINGS = Settings(trainer_image="trainer", token_key=TOKEN_KEY.encode())
CREATED = ("Pod", "RLHFJob", "Secret")
"""Kinds that are created; others are applied."""
ADDRESS = "127.7.0.9"
"""IP of every pod, and of the trainer that answers."""
DEADLINE_SECONDS = 1200.0


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
    pods = [
        build_pod(pinned, NewPod(role, index, attempt=1, resume=False), job.uid)
        for role in roles_of(spec)
        for index in range(replicas(spec, role))
    ]
    bodies = [token_secret(SETTINGS.token_key, job), *companions(pinned, job.uid, "default"), *pods]
    return [owned(body, job) for body in bodies]


async def at_once(calls: Iterable[Awaitable[Any]]) -> None:
    """As many as the operator has workers."""
    free = asyncio.Semaphore(WORKERS)

    async def one(call: Awaitable[Any]) -> None:
        async with free:
            await call

    await asyncio.gather(*(one(call) for call in calls))


async def make(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """The object, made by one call, or by more where the server gives no answer in time."""
    while True:
        try:
            return await (api.create(body) if body["kind"] in CREATED else api.apply(body))
        except ApiError as error:
            if error.status == 409:  # by a call whose answer did not come
                return await api.get(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
            if error.status:
                raise


async def make_jobs(namespace: str, numbers: Iterable[int], *, ended: bool = False) -> list[Job]:
    """Creates jobs; ended ones have the status of a job that succeeded, and no objects."""
    made = []

    async def one(number: int) -> None:
        body = manifest(number)
        body["metadata"]["namespace"] = namespace
        stored = await make(api, body)
        if ended:
            spec = parse({**body, "metadata": {"name": body["metadata"]["name"]}}).spec
            status = {"phase": "Succeeded", "step": spec.steps, "total_steps": spec.steps}
            over = first_status(spec, None).model_copy(update=status)
            content = observed(over, stored["metadata"]["generation"]).model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
            name = body["metadata"]["name"]
            await api.merge_status("RLHFJob", namespace, name, {"status": content})
        made.append(Job.of(stored))

    async with await Api.connect() as api:
        await at_once(one(number) for number in numbers)
    return made


def processor_seconds() -> float:
    """CPU time of this process and its descendants, which other work on the machine does not change."""
    own = psutil.Process()
    times = (process.cpu_times() for process in (own, *own.children(recursive=True)))
    return sum(each.user + each.system for each in times)


async def make_bare(jobs: list[Job]) -> tuple[float, float]:
    """Seconds, and processor seconds, that it takes to create everything, with nothing decided."""
    bodies = [body for job in jobs for body in objects(job)]
    async with await Api.connect() as api:
        began, worked = time.monotonic(), processor_seconds()
        await at_once(make(api, body) for body in bodies)
        return time.monotonic() - began, processor_seconds() - worked


async def pods_exist(namespace: str, count: int, running: Operator) -> None:
    """Asks as rarely and cheaply as can be: this machine's cores are what is shared.

    Raises:
        SystemExit: the operator has ended, as it does where the API server does not answer its lease in time.
    """
    async with asyncio.timeout(DEADLINE_SECONDS), await Api.connect() as api:
        core = CoreV1Api(ApiClient(api.configuration))
        async with core.api_client:
            while True:
                if running.process.poll() is not None:
                    raise SystemExit("the operator has ended:\n" + running.read_log()[-2000:])
                page = await core.list_namespaced_pod(namespace, limit=1)
                if len(page.items) + (page.metadata.remaining_item_count or 0) >= count:
                    return
                await asyncio.sleep(0.2)


def metrics(running: Operator) -> dict[str, float]:
    """Every series, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=10) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines)}


def quantile(samples: dict[str, float], share: float) -> float:
    """Upper bound, in seconds, of the histogram's bucket that holds this share of reconciles."""
    buckets = {}
    for key, value in samples.items():
        if match := re.match(r'rlhf_operator_reconcile_seconds_bucket\{le="([^"]+)",outcome="done"\}', key):
            buckets[float(match[1])] = value
    total = buckets[float("inf")]
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total)


def api_calls(samples: dict[str, float]) -> Counter[str]:
    """By verb and kind."""
    calls = Counter[str]()
    for key, value in samples.items():
        if called := re.match(r'rlhf_operator_api_calls_total\{code="\d+",kind="(\w+)",verb="(\w+)"\}', key):
            calls[f"{called[2]} {called[1]}"] += int(value)
    return calls


def peak_mib(running: Operator) -> float:
    """Highest resident memory of the operator's process."""
    text = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024


@contextmanager
def cluster() -> Iterator[tuple[Path, str]]:
    """Kubeconfig and namespace of a new control plane: what an earlier one has to clear away burdens nobody."""
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        kubectl(plane.kubeconfig, "create", "-f", "-", input=document(20))
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        with FakeNodes(plane, address=ADDRESS), new_namespace(plane.kubeconfig) as namespace:
            yield plane.kubeconfig, namespace
        del os.environ["KUBECONFIG"]


def own_milliseconds(running: Operator) -> float:
    """CPU time of the operator's process alone."""
    times = psutil.Process(running.process.pid).cpu_times()
    return 1000 * (times.user + times.system)


def measure(folder: Path, count: int, ended: int, quiet: float) -> tuple[str, Counter[str]]:
    """A line of the table, and the operator's API calls."""
    with cluster() as (_, namespace):
        bare, bare_work = asyncio.run(make_bare(asyncio.run(make_jobs(namespace, range(count)))))
    with cluster() as (kubeconfig, namespace), talking_trainer():
        asyncio.run(make_jobs(namespace, range(count, count + ended), ended=True))
        asyncio.run(make_jobs(namespace, range(count)))
        with operator(kubeconfig, folder / f"operator-{count}", namespace) as running:
            eventually(lambda: "leading as" in running.read_log(), "the operator leads")
            began, worked, own = time.monotonic(), processor_seconds(), own_milliseconds(running)
            asyncio.run(pods_exist(namespace, 4 * count, running))
            took, work = time.monotonic() - began, processor_seconds() - worked
            starting = own_milliseconds(running) - own
            time.sleep(quiet)
            whole = own_milliseconds(running) - own
            samples, memory = metrics(running), peak_mib(running)
    calls = api_calls(samples)
    line = (
        f"| {count} | {ended} | {bare:.1f} | {took:.1f} | {took / bare:.2f} | {work / bare_work:.2f} | "
        f"{1000 * quantile(samples, 0.5):.0f} | {1000 * quantile(samples, 0.99):.0f} | "
        f"{calls.total() / count:.1f} | {starting / count:.1f} | {whole / count:.1f} | {memory:.0f} |"
    )
    return line, calls


def hostile(number: int) -> dict[str, Any]:
    """A job of 1.4 MB, whose small objects take twenty times that in memory."""
    made = manifest(number)
    made["spec"]["pods"] = {"template": {"spec": {"tolerations": [{"key": f"k{i}"} for i in range(80_000)]}}}
    return made


async def make_hostile(namespace: str, count: int) -> None:
    async with await Api.connect() as api:
        for number in range(count):
            body = hostile(number)
            body["metadata"]["namespace"] = namespace
            await make(api, body)


async def refusals(namespace: str) -> int:
    """Number of jobs that were refused for their size."""
    async with await Api.connect() as api:
        statuses = [job.get("status", {}) async for job in api.list("RLHFJob", namespace, keep=trim)]
    return sum("must have at most" in status.get("message", "") for status in statuses)


class Probe:
    """Asks for the operator's health five times a second, as a kubelet does more rarely; the slowest answer counts."""

    def __init__(self, running: Operator) -> None:
        self._url, self.slowest, self._over = f"http://127.0.0.1:{running.metrics_port}/healthz", 0.0, Event()
        self._thread = Thread(target=self._ask)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.wait(0.2):
            began = time.monotonic()
            try:
                urllib.request.urlopen(self._url, timeout=30).close()
            except OSError:
                self.slowest = float("inf")
            self.slowest = max(self.slowest, time.monotonic() - began)


def measure_beside(folder: Path, count: int, others: int) -> tuple[float, float, float, int]:
    """Seconds until all pods of the jobs exist, beside others' hostile ones; the slowest answer of the health check in
    seconds; peak memory in MiB; and the number of hostile jobs that were refused by then or a minute later."""
    with cluster() as (kubeconfig, namespace), talking_trainer(), new_namespace(kubeconfig) as bad:
        asyncio.run(make_hostile(bad, others))
        asyncio.run(make_jobs(namespace, range(count)))
        with operator(kubeconfig, folder / f"operator-{count}-{others}") as running:
            limit_memory(running)
            eventually(lambda: "leading as" in running.read_log(), "the operator leads")
            began = time.monotonic()
            eventually(lambda: metrics(running), "its metrics")
            with Probe(running) as probe:
                asyncio.run(pods_exist(namespace, 4 * count, running))
                took = time.monotonic() - began
                for _ in range(12):
                    if (refused := asyncio.run(refusals(bad))) == others:
                        break
                    time.sleep(5)
            return took, probe.slowest, peak_mib(running), refused


def limit_memory(running: Operator) -> None:
    """512 MiB, as in the chart, where this process may set it (cgroups of version 1)."""
    group = Path("/sys/fs/cgroup/memory/operator-scale")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(512 << 20))
        (group / "cgroup.procs").write_text(str(running.process.pid))
    except OSError as error:
        print(f"its memory is not limited: {error}", file=sys.stderr)


def compare(folder: Path, count: int, others: int) -> None:
    print(
        "| jobs | hostile | alone s | beside s | ratio | refused | slowest health s | MiB alone | MiB beside |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    alone, _, before, _ = measure_beside(folder, count, 0)
    took, slowest, memory, refused = measure_beside(folder, count, others)
    print(
        f"| {count} | {others} | {alone:.1f} | {took:.1f} | {took / alone:.2f} | {refused} | {slowest:.2f} | "
        f"{before:.0f} | {memory:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--ended", type=int, default=0, help="jobs beside them that have succeeded before")
    parser.add_argument("--quiet", type=float, default=60, help="seconds after all pods exist")
    parser.add_argument("--hostile", type=int, default=0, help="jobs of 1.4 MB of another tenant")
    options = parser.parse_args()
    if options.hostile:
        with tempfile.TemporaryDirectory() as name:
            compare(Path(name), options.jobs[0], options.hostile)
        return
    print(
        "| jobs | ended | bare s | operator s | ratio | of processor seconds | reconcile p50 ms <= | p99 ms <= | "
        "API calls per job | own ms, start | own ms, whole | memory MiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for count in options.jobs:
            line, calls = measure(Path(name), count, options.ended, options.quiet)
            print(line, flush=True)
            per_job = (f"{what} {number / count:.2f}" for what, number in calls.most_common())
            print(f"calls per job: {', '.join(per_job)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

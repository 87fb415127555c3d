"""Times sandboxes in pods: a warm one from the claim to the end of its first command, and a cold one from its creation.

    .venv/bin/python benchmarks/cluster/sandboxes.py --warm 100
    .venv/bin/python benchmarks/cluster/sandboxes.py --job NAME --namespace NS [--seconds 120]

One JSON line for each: how many, p50, p95 and the most milliseconds. `warm`: servers of pods on this machine, in
namespaces of their own, each claimed as by a worker of an environment, which has a shell run. With `--job`, `cold`: the
pods of a job that runs on the cluster of the current context, for so many seconds or until its end, each from its
creation until it is ready, looked at ten times a second.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.sandbox_pod import sandbox_pod

from rlhf_operator.job.names import JOB, ROLE
from rlhf_trainer.environments.episode_sandbox import open_sandbox
from rlhf_trainer.environments.workers.sandbox_pods import Sandboxes, SandboxPods

LOOK_SECONDS = 0.1


async def time_claims(count: int) -> list[float]:
    """Seconds of each, one after another."""
    taken = list[float]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pods = [stack.enter_context(sandbox_pod(Path(folder, str(i)), "token")) for i in range(count)]
        addresses = {str(i): pod.address for i, pod in enumerate(pods)}
        await SandboxPods("token", 60, lambda: Sandboxes(addresses), lambda: len(addresses)).start()
        for _ in pods:
            began = time.perf_counter()
            sandbox = await open_sandbox()
            ran = await sandbox.run(("sh", "-c", "echo ready"))
            taken.append(time.perf_counter() - began)
            assert ran.output == "ready\n", ran
            await sandbox.close()
    return taken


def follow(job: str, namespace: str, seconds: float) -> list[float]:
    """Seconds of the starts that are seen whole."""
    began, taken = dict[str, float](), list[float]()
    first, until = True, time.monotonic() + seconds
    while time.monotonic() < until:
        pods, now = read_pods(job, namespace), time.monotonic()
        if not pods:  # the job is over
            break
        for pod in pods:
            uid = pod["metadata"]["uid"]
            began.setdefault(uid, math.nan if first else now)
            if is_ready(pod["status"]) and not math.isnan(began[uid]):
                taken.append(now - began[uid])
                began[uid] = math.nan
        first = False
        time.sleep(LOOK_SECONDS)
    return taken


def read_pods(job: str, namespace: str) -> list[dict[str, Any]]:
    labels = f"{JOB}={job},{ROLE}=sandbox"
    command = ("kubectl", "get", "pods", "-n", namespace, "-l", labels, "-o", "json")
    listed = subprocess.run(command, check=False, capture_output=True).stdout
    return [*json.loads(listed or '{"items": []}')["items"]]


def is_ready(status: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


def print_case(name: str, taken: Sequence[float]) -> None:
    if len(taken) < 2:
        sys.exit(f"error: {len(taken)} of {name} were seen, which is too few")
    cuts = quantiles(taken, n=20, method="inclusive")
    figures = {"p50_ms": cuts[9], "p95_ms": cuts[18], "most_ms": max(taken)}
    rounded = {figure: round(1e3 * value, 1) for figure, value in figures.items()}
    print(json.dumps({"case": name, "count": len(taken), **rounded}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--warm", type=int, metavar="PODS")
    parser.add_argument("--job")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    if options.warm:
        print_case("warm", asyncio.run(time_claims(options.warm)))
    if options.job:
        print_case("cold", follow(options.job, options.namespace, options.seconds))


if __name__ == "__main__":
    main()

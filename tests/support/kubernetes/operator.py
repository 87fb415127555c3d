"""The operator as a process, a trainer that only talks, and jobs: for tests against a real API server."""

import asyncio
import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from tests.support.kubernetes.fake_nodes import JOBS
from tests.support.kubernetes.kube import KubectlError, eventually, get, kubectl
from tests.support.ports import free_port
from tests.support.proving import proving

from rlhf_api.contract.run import CONTROL_CHECKPOINT, CONTROL_MEMBERS, CONTROL_STATUS, CONTROL_STOP
from rlhf_api.roles import HEALTH

TOKEN_KEY = "k" * 48
ROLES = 'jsonpath={range .items[*]}{.metadata.name} {.status.roles}{"\\n"}{end}'
_STOP_S = 60


@dataclass
class Operator:
    """One running operator."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int

    def kill(self) -> None:
        """As a node's death does."""
        self.process.kill()
        self.process.wait(_STOP_S)

    def stop(self) -> int:
        """As Kubernetes does; returns the exit code."""
        self.process.terminate()
        return self.process.wait(_STOP_S)

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def operator(
    kubeconfig: Path, folder: Path, namespace: str | None = None, *, deployed: bool = False, **environ: str
) -> Iterator[Operator]:
    """An operator for one namespace, or for all; its Lease is in `namespace` or `default`. `deployed`: it is started
    again if it ends for want of its lease, as by its Deployment: on a busy machine an API server may be too late. After
    any other end it stays ended."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "KUBECONFIG": str(kubeconfig),
        "RLHF_TRAINER_IMAGE": "localhost/rlhf-trainer:dev",
        "RLHF_TOKEN_KEY": TOKEN_KEY,
        "RLHF_METRICS_PORT": str(port),
        "RLHF_LOG_FORMAT": "text",
        "POD_NAMESPACE": namespace or "default",
        "POD_NAME": folder.name,
        **({"RLHF_NAMESPACES": namespace} if namespace else {}),
        **environ,
    }
    log = folder / f"operator-{port}.log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "rlhf_operator.cluster"],
                env={**os.environ, **settings},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    running, changing, over = Operator(start(), log, port), threading.Lock(), threading.Event()

    def keep() -> None:
        lost = 0
        while running.process.wait() and (now := running.read_log().count("LeaseLost: ")) > lost:
            with changing:
                if over.is_set():
                    return
                running.process, lost = start(), now

    if deployed:
        threading.Thread(target=keep, daemon=True).start()
    try:
        yield running
    finally:
        with changing:
            over.set()
        process = running.process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)
        if sys.exc_info()[0] is not None:
            print(running.read_log()[-6000:])


@dataclass
class TalkingTrainer:
    """The control API of a trainer that trains nothing, for all jobs of FakeNodes, at port 8000 of their addresses."""

    status: dict[str, Any] = field(
        default_factory=lambda: {"activity": "training", "step": 1, "totalSteps": 40}
    )
    members: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    async def _serve(self) -> web.AppRunner:
        app = web.Application(middlewares=[proving(_token_at)])
        app.add_routes(
            [
                web.get(HEALTH, self._health),
                web.get(CONTROL_STATUS, self._status),
                web.put(CONTROL_MEMBERS, self._members),
                web.post(CONTROL_STOP, self._order),
                web.post(CONTROL_CHECKPOINT, self._order),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 8000, reuse_port=True).start()
        return runner

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _status(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        return web.json_response(self.status)

    async def _members(self, request: web.Request) -> web.Response:
        self.members = (await request.json())["members"]
        return web.json_response({})

    async def _order(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.json_response({})


def _token_at(address: str) -> str:
    return hmac.new(TOKEN_KEY.encode(), JOBS.get(address, "").encode(), hashlib.sha256).hexdigest()


@contextmanager
def talking_trainer() -> Iterator[TalkingTrainer]:
    trainer, loop = TalkingTrainer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(trainer._serve(), loop).result(60)
    try:
        yield trainer
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


@dataclass(frozen=True)
class Jobs:
    """The jobs of a namespace, by kubectl."""

    kubeconfig: Path
    namespace: str

    def apply(self, document: Any) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=yaml.safe_dump(document))

    def patch(self, name: str, **spec: Any) -> None:
        self.kubectl("patch", "rlhfjob", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def reason(self, name: str, condition: str) -> str:
        """Of a condition; empty where there is none."""
        conditions = self.status(name).get("conditions", ())
        return next((c["reason"] for c in conditions if c["type"] == condition), "")

    def status(self, name: str) -> dict[str, Any]:
        return self.get("rlhfjob", name).get("status", {})

    def get(self, *arguments: str) -> Any:
        return get(self.kubeconfig, *arguments, "-n", self.namespace)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return kubectl(self.kubeconfig, *arguments, "-n", self.namespace, input=input)

    def pods(self) -> dict[str, str]:
        """Uids by name, of jobs' pods that are not being deleted."""
        items = self.get("pods", "-l", "rlhf.dev/job")["items"]
        return {
            p["metadata"]["name"]: p["metadata"]["uid"]
            for p in items
            if "deletionTimestamp" not in p["metadata"]
        }

    def until(self, name: str, phase: str, timeout: float = 240) -> dict[str, Any]:
        """The status once the job is in this phase."""
        return eventually(
            lambda: s if (s := self.status(name)).get("phase") == phase else None,
            f"{name} is {phase}",
            timeout,
        )

    @contextmanager
    def explained(self, *namespaces: str) -> Iterator[None]:
        """Prints the roles of all jobs and the last lines of all containers if the body fails, of other namespaces'
        too."""
        try:
            yield
        except BaseException:
            print(self.kubectl("get", "rlhfjobs,pods", "-o", "wide"))
            print(self.kubectl("get", "rlhfjobs", "-o", ROLES))
            for namespace in (self.namespace, *namespaces):
                for pod in get(self.kubeconfig, "pods", "-n", namespace)["items"]:
                    name = pod["metadata"]["name"]
                    with suppress(KubectlError):
                        where = ("logs", name, "-n", namespace, "--all-containers", "--prefix")
                        log = kubectl(self.kubeconfig, *where, "--tail=25")
                        print(f"--- {namespace}/{name}\n{log}")
            raise

    def until_pods(self, count: int, timeout: float = 240) -> dict[str, str]:
        return eventually(lambda: [p] if len(p := self.pods()) == count else [], f"{count} pods", timeout)[0]

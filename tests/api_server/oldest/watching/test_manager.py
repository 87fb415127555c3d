"""One operator process with a reconcile that only takes notes, on a real API server."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from tests.api_server.oldest.jobs import PPO
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl, new_namespace
from tests.support.servers.proxy import proxied

from rlhf_operator.cluster import manager as module
from rlhf_operator.cluster.act.recorder import Recorder
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.decide.describe import Event
from rlhf_operator.cluster.manager import Process
from rlhf_operator.cluster.serve import logs
from rlhf_operator.cluster.telemetry import Telemetry
from rlhf_operator.cluster.watching.cache import Cache
from rlhf_operator.kube.api import Api, Key
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.kube.lease import NAME, LeaseLost

pytestmark = pytest.mark.usefixtures("crd")
LABELS = {"app.kubernetes.io/managed-by": "rlhf-operator", "rlhf.dev/job": "ppo"}


class Operator:
    """A process at work in some namespaces, its Lease in the first, and what its reconcile saw."""

    def __init__(self, api: Api, namespaces: tuple[str, ...], identity: str) -> None:
        self.api, self.cache, self.telemetry = api, Cache(), Telemetry()
        settings = Settings(
            trainer_image="x",
            token_key=b"k" * 32,
            namespaces=namespaces,
            own_namespace=namespaces[0],
            identity=identity,
        )
        self.process = Process(settings, api, self.cache, self.telemetry, self._reconcile)
        self.looks: list[tuple[str, tuple[str, ...]]] = []
        """Of each reconcile the job's name, and its pods'."""
        self.act: Callable[[str], Awaitable[float | None]] = self._nothing
        self._more = asyncio.Event()

    async def _reconcile(self, key: Key) -> float | None:
        pods = tuple(sorted(pod["metadata"]["name"] for pod in self.cache.pods(key)))
        self.looks.append((key[1], pods))
        self._more.set()
        return await self.act(key[1])

    async def _nothing(self, _: str) -> float | None:
        return None

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self._more.clear()
                try:
                    async with asyncio.timeout(0.2):
                        await self._more.wait()
                except TimeoutError:
                    pass

    def looks_at(self, name: str) -> int:
        return [entry[0] for entry in self.looks].count(name)

    def reconciles(self, outcome: str) -> float:
        registry: CollectorRegistry = self.telemetry.registry
        return registry.get_sample_value("rlhf_operator_reconcile_seconds_count", {"outcome": outcome}) or 0.0


@pytest.fixture
def talk(
    control_plane: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Awaitable]], None]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    def run(body: Callable[[], Awaitable]) -> None:
        async def main() -> None:
            async with asyncio.timeout(300):
                await body()

        asyncio.run(main())

    return run


@asynccontextmanager
async def operator(*namespaces: str, identity: str = "only") -> AsyncIterator[tuple[Operator, asyncio.Task]]:
    async with await Api.connect() as api:
        made = Operator(api, namespaces, identity)
        running = asyncio.create_task(made.process.run())
        try:
            yield made, running
        finally:
            running.cancel()
            await asyncio.wait([running])


def job(namespace: str, name: str = "ppo") -> dict:
    return {**PPO, "metadata": {"name": name, "namespace": namespace}}


def pod(namespace: str, name: str) -> dict:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    spec = {"containers": [{"name": "role", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def leads(made: Operator) -> None:
    await made.until(lambda: made.process._leading and made.process.ready())


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_what_is_there_is_known_before_the_first_look(talk, namespace):
    async def body() -> None:
        async with await Api.connect() as api:
            await api.create(job(namespace))
            for name in ("a", "b"):
                await api.create(pod(namespace, name))
        async with operator(namespace) as (made, _):
            await made.until(lambda: made.looks)
            assert made.looks[0] == ("ppo", ("a", "b"))

    talk(body)


def test_what_happens_is_looked_at_and_our_own_writing_is_not(talk, namespace):
    async def body() -> None:
        async with operator(namespace) as (made, _):
            await leads(made)
            body = await made.api.create(job(namespace))
            await made.until(lambda: ("ppo", ()) in made.looks)
            await made.api.create(pod(namespace, "a"))
            await made.until(lambda: ("ppo", ("a",)) in made.looks)
            await asyncio.sleep(0.5)
            before = len(made.looks)
            keep = ("apiVersion", "kind")
            metadata = {"name": "ppo", "namespace": namespace}
            status = {"phase": "Running", "step": 3, "totalSteps": 9}
            written = {**{k: body[k] for k in keep}, "metadata": metadata, "status": status}
            made.cache.put(await made.api.apply_status(written))
            await asyncio.sleep(1)
            assert len(made.looks) == before
            await made.api.delete("Pod", namespace, "a", grace=0)
            await made.until(lambda: len(made.looks) > before and made.looks[-1] == ("ppo", ()))
            await made.api.delete("RLHFJob", namespace, "ppo")
            await made.until(lambda: not made.cache.keys() and len(made.looks) > before + 1)

    talk(body)


def test_at_its_start_it_looks_at_jobs_at_rest_last(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "WORKERS", 1)

    async def body() -> None:
        async with await Api.connect() as api:
            for name, phase in (("a-over", "Failed"), ("b-over", "Succeeded"), ("c-runs", "Running")):
                await api.create(job(namespace, name))
                status = {"phase": phase, "step": 0, "totalSteps": 9}
                await api.merge_status("RLHFJob", namespace, name, {"status": status})
        async with operator(namespace) as (made, _):
            await made.until(lambda: len(made.looks) >= 3)
            assert made.looks[0] == ("c-runs", ())

    talk(body)


def test_pods_that_come_together_are_one_look(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "_BATCH_SECONDS", 3.0)

    async def body() -> None:
        async with operator(namespace) as (made, _):
            await leads(made)
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks)
            for name in ("a", "b", "c"):
                await made.api.create(pod(namespace, name))
            await made.until(lambda: made.looks_at("ppo") == 2)
            assert made.looks[-1] == ("ppo", ("a", "b", "c"))
            monkeypatch.setattr(module, "_BATCH_SECONDS", 600.0)
            await made.api.delete("Pod", namespace, "a", grace=0)  # an end is looked at without delay
            await made.until(lambda: made.looks[-1] == ("ppo", ("b", "c")))

    talk(body)


def test_a_job_at_rest_is_not_looked_at_again_and_again(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_RESYNC_SECONDS", 0.3)
    monkeypatch.setattr(module, "_RESYNC_SECONDS", 0.3)

    async def body() -> None:
        async with operator(namespace) as (made, _):
            await leads(made)
            for name, phase in (("over", "Succeeded"), ("runs", "Running")):
                await made.api.create(job(namespace, name))
                await made.api.merge_status(
                    "RLHFJob", namespace, name, {"status": {"phase": phase, "step": 0, "totalSteps": 9}}
                )
            await made.until(lambda: made.looks_at("runs") >= 2 and len(made.cache.active_keys()) == 1)
            before = made.looks_at("over"), made.looks_at("runs")
            await made.until(lambda: made.looks_at("runs") >= before[1] + 4)
            assert made.looks_at("over") == before[0]

    talk(body)


def test_a_job_whose_reconcile_fails_harms_no_other(talk, namespace, caplog):
    async def body() -> None:
        async with operator(namespace) as (made, running):

            async def act(name: str) -> float | None:
                if name == "bad":
                    raise KeyError("a fault of ours")
                if name == "refused":
                    raise ApiError(429, "TooManyRequests", "slow down", retry_after=60.0)
                return None

            made.act = act
            await leads(made)
            for name in ("bad", "refused", "good"):
                await made.api.create(job(namespace, name))
            await made.until(lambda: made.looks_at("bad") >= 3 and made.looks_at("good"))
            await made.api.delete("RLHFJob", namespace, "refused")  # an event
            await asyncio.sleep(0.5)
            assert made.looks_at("refused") == 1  # the server said when
            assert made.reconciles("error") >= 4
            assert made.reconciles("done") >= 1
            assert not running.done()

    talk(body)
    assert "a fault of ours" in caplog.text
    assert "slow down; trying again in 60.0 s" in caplog.text


def test_a_job_is_looked_at_again_when_it_wants(talk, namespace):
    async def body() -> None:
        async with operator(namespace) as (made, _):

            async def act(_: str) -> float | None:
                return 0.2

            made.act = act
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks_at("ppo") >= 4)

    talk(body)


NEEDED = (
    "rlhfjobs.rlhf.dev,pods,configmaps,services,networkpolicies.networking.k8s.io,leases.coordination.k8s.io"
)
BIND = ("create", "rolebinding", "operator", "--role=operator")


@pytest.fixture
def elsewhere(control_plane: Cluster, namespace: str, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A second namespace, and the kubeconfig of an account of the first that has a role in both and no other rights."""
    run = partial(kubectl, control_plane.kubeconfig)
    with new_namespace(control_plane.kubeconfig) as other:
        run("create", "serviceaccount", "operator", "-n", namespace)
        for where in (namespace, other):
            verbs = "--verb=get,list,watch,create,update"
            run("create", "role", "operator", verbs, f"--resource={NEEDED}", "-n", where)
            run(*BIND, f"--serviceaccount={namespace}:operator", "-n", where)
        config = yaml.safe_load(run("config", "view", "--raw", "--minify", "--flatten"))
        token = run("create", "token", "operator", "-n", namespace).strip()
        config["users"][0]["user"] = {"token": token}
        kubeconfig = tmp_path / "operator.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        yield other, kubeconfig


def test_a_namespace_that_may_not_be_listed_is_left_out_until_it_may(
    talk, namespace, elsewhere, control_plane, monkeypatch, caplog
):
    """For example because the namespace or its RoleBinding was deleted."""
    other, kubeconfig = elsewhere
    for name in ("_FIRST_RESYNC_SECONDS", "_RESYNC_SECONDS"):
        monkeypatch.setattr(module, name, 0.3)
    caplog.set_level(logging.INFO, module.__package__)

    async def body() -> None:
        async with await Api.connect() as admin:
            await admin.create(job(other))
            await admin.create(pod(other, "a"))
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            async with operator(namespace, other) as (made, running):
                known = []

                async def act(name: str) -> float | None:
                    if made.cache.job((other, name)):
                        known.append(made.looks[-1][1])
                    return None

                made.act = act
                await made.until(lambda: known)
                kubectl(control_plane.kubeconfig, "delete", "rolebinding", "operator", "-n", other)
                await made.until(lambda: not made.cache.keys())
                await admin.create(job(namespace, "here"))
                await made.until(lambda: made.looks_at("here"))
                assert made.cache.keys() == [(namespace, "here")]
                known.clear()
                account = f"--serviceaccount={namespace}:operator"
                kubectl(control_plane.kubeconfig, *BIND, account, "-n", other)
                await made.until(lambda: known)
                assert set(known) == {("a",)}  # its pods were known before it was
                await admin.create(pod(other, "b"))
                await made.until(lambda: ("a", "b") in known)
                assert not running.done()

    talk(body)
    assert f"namespace {other} is not served until the operator may list it: 403 Forbidden" in caplog.text
    assert f"namespace {other} is served again" in caplog.text


def test_a_stop_lets_a_reconcile_end_and_gives_the_lease_back(talk, namespace, monkeypatch):
    """It does not wait for as long as it may."""
    monkeypatch.setattr(module, "_STOP_SECONDS", 100.0)

    async def body() -> None:
        async with operator(namespace) as (made, running):
            finished = []

            async def act(name: str) -> float | None:
                await asyncio.sleep(1)
                finished.append(name)
                return 0.0

            made.act = act
            await leads(made)
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks)
            stop()
            async with asyncio.timeout(60):
                await running
            assert finished == ["ppo"]
            assert len(made.looks) == 1
            assert not made.process.ready()
            assert (await made.api.get("Lease", namespace, NAME))["spec"]["holderIdentity"] == ""

    talk(body)


@pytest.mark.usefixtures("kueue")
@pytest.mark.parametrize("before", [False, True], ids=["comes", "goes"])
def test_an_operator_under_which_kueue_comes_or_goes_ends_to_begin_anew(talk, namespace, monkeypatch, before):
    """kopf watches only the kinds that are served when it starts."""
    monkeypatch.setattr(module, "_FIRST_RESYNC_SECONDS", 0.5)
    served, there = Api.serves, before

    async def serves(api: Api, kind: str) -> bool:
        return await served(api, kind) and (there or kind != "Workload")

    monkeypatch.setattr(Api, "serves", serves)

    async def body() -> None:
        nonlocal there
        async with operator(namespace) as (made, running):
            await leads(made)
            assert made.process.alive()
            there = not before
            async with asyncio.timeout(60):
                await running
            assert (await made.api.get("Lease", namespace, NAME))["spec"]["holderIdentity"] == ""

    talk(body)


def test_a_reconcile_that_does_not_end_is_cut_short(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.5)

    async def body() -> None:
        async with operator(namespace) as (made, running):
            await leads(made)
            made.act = lambda _: asyncio.sleep(100)
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks)
            stop()
            async with asyncio.timeout(60):
                await running

    talk(body)


def test_a_reconcile_has_a_deadline(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "_RECONCILE_SECONDS", 0.2)

    async def body() -> None:
        async with operator(namespace) as (made, _):
            made.act = lambda _: asyncio.sleep(100)
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks_at("ppo") >= 2)
            assert made.process.alive()

    talk(body)


def test_a_watch_that_is_open_and_tells_nothing_is_seen(
    talk, namespace, control_plane, tmp_path, monkeypatch
):
    """The periodic listings detect it; /healthz then fails, so that the kubelet restarts the operator."""
    monkeypatch.setattr(module, "_FIRST_RESYNC_SECONDS", 0.5)
    monkeypatch.setattr(module, "_RESYNC_SECONDS", 0.5)

    async def body() -> None:
        async with await Api.connect() as direct:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            async with operator(namespace) as (made, _):
                await leads(made)
                await direct.create(job(namespace, "told"))
                await made.until(lambda: made.looks_at("told"))
                await made.until(made.process.alive)
                proxy.freeze_watches(True)
                await direct.create(job(namespace, "untold"))
                await made.until(lambda: not made.process.alive())
                assert made.looks_at("untold") == 0
                proxy.freeze_watches(False)
                proxy.cut_watches()
                await made.until(lambda: made.looks_at("untold"))
                await made.until(made.process.alive)

    with proxied(control_plane, tmp_path) as (proxy, kubeconfig):
        talk(body)


def test_a_standby_is_ready_and_stops_at_once(talk, namespace):
    async def body() -> None:
        async with operator(namespace, identity="first") as (first, _):
            await leads(first)
            async with operator(namespace, identity="second") as (second, running):
                assert not second.process.ready()
                await second.until(second.process.ready)
                await second.api.create(job(namespace))
                await first.until(lambda: first.looks)
                assert second.looks == []
                stop()  # the signal is the second's, who asked for it last
                async with asyncio.timeout(60):
                    await running

    talk(body)


def test_who_loses_the_lease_ends_and_changes_nothing_more(talk, namespace, control_plane):
    async def body() -> None:
        async with operator(namespace) as (made, running):
            cut = []

            async def act(_: str) -> float | None:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    with pytest.raises(ApiError, match="no longer holds the lease"):
                        await made.api.create(pod(namespace, "too-late"))
                    cut.append(True)
                    raise
                return None

            made.act = act
            await leads(made)
            await made.api.create(job(namespace))
            await made.until(lambda: made.looks)
            thief = json.dumps({"spec": {"holderIdentity": "thief"}})
            lease = ("lease", NAME, "-n", namespace)
            kubectl(control_plane.kubeconfig, "patch", *lease, "--type=merge", "-p", thief)
            with pytest.raises(ExceptionGroup) as ended:
                async with asyncio.timeout(60):
                    await running
            assert isinstance(ended.value.exceptions[0], LeaseLost)
            assert cut == [True]

    talk(body)


def test_who_finds_the_lease_run_out_ends_though_it_is_renewed_just_then(talk, namespace):
    """A process that was frozen with a renewal under way: its worker wakes first. It would lead on without workers, and
    its liveness probe would find nothing wrong."""

    async def body() -> None:
        async with operator(namespace) as (made, running):
            await leads(made)
            answers = iter([False])
            held = made.process._lease.is_held
            made.process._lease.is_held = lambda: next(answers, True) and held()
            await made.api.create(job(namespace))
            with pytest.raises(ExceptionGroup) as ended:
                async with asyncio.timeout(60):
                    await asyncio.shield(running)
            assert isinstance(ended.value.exceptions[0], LeaseLost)
            assert not made.looks

    talk(body)


def test_events_are_counted_not_repeated(talk, namespace):
    async def body() -> None:
        async with await Api.connect() as api:
            recorder, made = Recorder(api), await api.create(job(namespace))
            for _ in range(3):
                await recorder.record(made, Event("Normal", "Started", "all pods run"))
            await recorder.record(made, Event("Warning", "Long", "x" * 5000))
            elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "none"}}
            await recorder.record(elsewhere, Event("Normal", "A", "b"))
            events = [event async for event in api.list("Event", namespace)]
            by_reason = {event["reason"]: event for event in events}
            assert set(by_reason) == {"Started", "Long"}
            assert by_reason["Started"]["involvedObject"]["uid"] == made["metadata"]["uid"]
            assert by_reason["Started"]["count"] == 1  # written again when ten seconds are over
            assert len(by_reason["Long"]["message"]) == 1024

    talk(body)


SETTINGS = {"RLHF_TOKEN_KEY": "k" * 32, "RLHF_TRAINER_IMAGE": "x"}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "RLHF_TOKEN_KEY is not set"),
        ({"RLHF_TOKEN_KEY": "short", "RLHF_TRAINER_IMAGE": "x"}, "at least 32 characters"),
        (SETTINGS | {"KUBECONFIG": "/none"}, "found no cluster"),
        (SETTINGS | {"RLHF_GPU_PRICES": '{"gpu": -1}'}, "with no price below 0; got"),
        (
            SETTINGS | {"RLHF_METRICS_FROM": '["prometheus"]'},
            "must be a JSON list of NetworkPolicy peers; got",
        ),
        (
            SETTINGS | {"RLHF_METRICS_FROM": '[{"ipBlock": {"cidr": "10.0.0.1/8"}}]'},
            "NetworkPolicy peers (10.0.0.1/8 has host bits set); got",
        ),
        (
            SETTINGS | {"RLHF_METRICS_FROM": '[{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]'},
            "NetworkPolicy peers (a peer with an ipBlock must have no other field); got",
        ),
    ],
)
def test_wrong_settings_are_said_in_a_line_and_exit_status_2(environ, says):
    command = [sys.executable, "-m", "rlhf_operator.cluster"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rlhf-operator: ")
    assert says in last
    assert "Traceback" not in done.stderr
    assert "k" * 32 not in done.stderr


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_of_the_log_names_its_job(log_format, capfd):
    root = logging.getLogger()
    before, level, root.handlers = root.handlers, root.level, []
    try:
        logs.set_up(log_format)
        with logs.about(("team", "ppo")):
            try:
                raise RuntimeError("boom")
            except RuntimeError:
                logging.getLogger("a.b").exception("it failed")
        logging.getLogger("a.b").info("elsewhere", extra={"settings": object()})
    finally:
        root.handlers = before
        root.setLevel(level)
    first, *rest = capfd.readouterr().err.splitlines()
    if log_format == "text":
        assert first.endswith("ERROR [team/ppo] it failed")
        assert rest[-1].endswith("INFO elsewhere")
        return
    line, last = json.loads(first), json.loads(rest[0])
    assert line.pop("time").startswith("20")
    assert "RuntimeError: boom" in line.pop("exception")
    assert line == {
        "level": "ERROR",
        "logger": "a.b",
        "message": "it failed",
        "namespace": "team",
        "job": "ppo",
    }
    assert set(last) == {"time", "level", "logger", "message"}

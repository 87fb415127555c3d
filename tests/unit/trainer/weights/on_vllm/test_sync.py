"""Two real vLLM servers, of which one dies or hangs."""

import signal
from dataclasses import replace

import psutil
import pytest
from tests.support.kubernetes.kube import eventually
from tests.support.ports import free_port
from tests.support.servers import vllm_server
from tests.unit.trainer.weights.support import (
    TOKEN,
    Adapted,
    generator,
    served_logprobs,
    serves,
    status,
    weights,
)

from rlhf_api.contract.run import Member
from rlhf_trainer.transport.http import Deposed, HttpClient

pytestmark = pytest.mark.slow
TIMEOUT_S = 20.0  # of a step; what a hung member costs
PATIENCE_S = 240


@pytest.fixture(scope="module")
def other(folder, starting_tied):  # noqa: ARG001  they start side by side
    """Its engine has a worker beside it, as with several GPUs."""
    arguments = ("--distributed-executor-backend", "mp")
    log = folder / "other.log"
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    server = vllm_server.launch(folder / "tied-0", log, token=TOKEN, arguments=arguments, **environ)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture
def first(tied) -> Member:
    return generator(0, tied.address)


@pytest.fixture
def second(other) -> Member:
    return generator(1, other.address)


class At:
    """Does something once, at a point of a broadcast; counts what it saw."""

    def __init__(self) -> None:
        self.point, self.action = "", lambda: None
        self.seen: list[str] = []

    def set(self, point: str, action) -> None:
        self.point, self.action = point, action

    def __call__(self, point: str) -> None:
        self.seen.append(point)
        if point == self.point:
            self.point = ""
            self.action()


def ended(process: psutil.Process) -> bool:
    """True also of one that nobody has waited for."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_refuses_costs_an_epoch_and_nobody_else(tied, first, second, http, make_sync, models):
    stranger = second.model_copy(
        update={"address": second.address.replace("127.0.0.1", "127.0.0.2")}
    )  # nothing listens there
    new = models("tied", 1)
    report = make_sync().send([first, stranger], lambda: weights(new), 1)
    assert report.holders == (first,), report.lost
    assert stranger in report.lost
    assert serves(http, tied, new)


def test_a_trainer_that_a_later_one_has_replaced_changes_nothing(tied, first, http, make_sync, models):
    """Such as one on a node that the cluster has given up but that still runs."""
    with HttpClient(TOKEN) as earlier, HttpClient(TOKEN) as later:
        earlier.claim(4)
        later.claim(5)
        its_sync, sync = make_sync(earlier), make_sync(later)
        assert its_sync.send([first], lambda: weights(models("tied", 1)), 1).holders == (first,)
        new = models("tied", 2)
        assert sync.send([first], lambda: weights(new), 2).holders == (first,)
        with pytest.raises(
            Deposed, match="a trainer of epoch 5 already uses this server; this request is from epoch 4"
        ):
            its_sync.send([first], lambda: weights(models("tied", 3)), 3)
        with pytest.raises(Deposed):
            its_sync.changed([first])
        with pytest.raises(Deposed):
            served_logprobs(earlier, tied)
        assert status(http, tied)["version"] == 2
        assert serves(http, tied, new)
        its_sync.close()
        sync.close()


def test_a_member_that_hangs_is_noticed_at_the_deadline_and_may_come_back(
    tied, other, first, second, http, make_sync, models
):
    at = At()
    sync = make_sync(timeout_s=TIMEOUT_S, fault=at)
    new = models("tied", 1)
    assert sync.send([first, second], lambda: weights(new), 1).holders == (first, second)
    at.set("bucket:1", lambda: other.signal(signal.SIGSTOP))
    newer = models("tied", 2)
    report = sync.send([first, second], lambda: weights(newer), 2)
    assert report.holders == (first,), report.lost
    assert report.lost.keys() == report.silent == {second}
    assert report.attempts == 2
    assert serves(http, tied, newer)
    other.signal(signal.SIGCONT)
    newest = models("tied", 3)
    report = sync.send([first, second], lambda: weights(newest), 3)
    assert report.holders == (first, second), report.lost
    assert serves(http, tied, newest)
    assert serves(http, other, newest)


def test_a_member_killed_in_mid_broadcast_costs_one_epoch_and_rejoins_when_restarted(
    tied, other, first, second, http, make_sync, models, folder
):
    """In that of a base. The adapter alone goes to who has it, and the base once more to who came instead."""
    at = At()
    sync = make_sync(fault=at)
    old = models("tied", 1)
    before = sync.send([first, second], lambda: weights(old), 1)
    assert before.holders == (first, second)
    policy = Adapted(models("tied", 2))
    passes, untouched = [], []

    def tensors():
        passes.append(0)
        untouched.append(not status(http, tied)["open"])
        for pair in policy.base_tensors():
            passes[-1] += 1
            yield pair

    base = replace(policy.base, tensors=tensors)

    below = psutil.Process(other.process.pid).children(recursive=True)
    (engine,) = (process for process in below if "EngineCore" in process.cmdline()[0])
    (worker,) = (process for process in below if "Worker" in process.cmdline()[0])

    def kill_server() -> None:
        """It alone. Its worker can do nothing about it, as in a collective that hangs."""
        worker.suspend()
        other.process.kill()

    at.set("bucket:1", kill_server)
    report = sync.send([first, second], policy.version_tensors, 2, base=base)
    eventually(lambda: ended(engine) and ended(worker), "the end of the engine and its worker", PATIENCE_S)
    assert report.holders == (first,), report.lost
    assert report.lost.keys() == {second}
    assert (report.attempts, report.epoch) == (2, before.epoch + 1)
    assert len(passes) == 2
    assert len(set(passes)) == 1  # each pass went to the end
    assert serves(http, tied, policy.unwrapped)

    port = int(second.address.rsplit(":", 1)[1])
    spoilable = ("--worker-extension-cls", "tests.unit.trainer.weights.sabotage.Sabotage")
    again = vllm_server.start(
        folder / "tied-0", folder / "again.log", token=TOKEN, port=port, arguments=spoilable
    )
    try:
        reborn = second.model_copy(update={"uid": "2"})
        policy.train(3)
        sent = sync.send([first], policy.version_tensors, 3, base=base)
        assert (sent.holders, sent.base_bytes, len(passes)) == ((first,), 0, 2)
        report = sync.send([first, reborn], policy.version_tensors, 3, base=base)
        assert report.holders == (first, reborn), report.lost
        assert report.base_bytes > 10 * report.bytes
        assert untouched == [False, False, True]
        for server in (tied, again):
            assert serves(http, server, policy.unwrapped)
            now = status(http, server)
            assert (now["version"], now["digest"]) == (3, report.digest)
            assert now["base"] == base.fingerprint
        # A swap that fails ends the process, since half a model must never serve.
        ask = {"method": "spoil_swap"}
        http.run(http.json("POST", f"{again.address}/collective_rpc", ask, timeout=120))
        newer = models("tied", 1)
        report = sync.send([first, reborn], lambda: weights(newer), 4)
        assert report.holders == (first,), report.lost
        assert "spoilt for a test" in report.lost[reborn]
        again.process.wait(PATIENCE_S)
        assert serves(http, tied, newer)
    finally:
        again.stop()


def test_nobody_left_is_reported_not_raised(make_sync, models):
    absent = generator(0, f"http://127.0.0.1:{free_port()}")
    report = make_sync().send([absent], lambda: weights(models("tied", 1)), 1)
    assert report.holders == ()
    assert report.lost.keys() == {absent}
    assert make_sync().send([], lambda: weights(models("tied", 1)), 1).holders == ()

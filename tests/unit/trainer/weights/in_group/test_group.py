"""The group and the stream, with threads for the workers: no vLLM here."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest
import torch
from tests.support.ports import free_port
from torch.distributed import PrefixStore, rendezvous

from rlhf_trainer.transport.tcp_store import use_everywhere
from rlhf_trainer.weights import stream
from rlhf_trainer.weights.buckets import unpack
from rlhf_trainer.weights.group import Group, TransferFailed, connect_store, host_store, publish_epoch

CPU = torch.device("cpu")
HOST, SECRET = "127.0.0.1", "a secret"
TIMEOUT_S = 300.0
"""A deadline that what comes at once does not wait for, on a busy machine either."""


@pytest.fixture
def store():
    return host_store(HOST, TIMEOUT_S)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def join(store, rank: int, size: int) -> Group:
    return Group(connect_store(HOST, store.port, "e1", TIMEOUT_S), "e1", SECRET, rank, size, TIMEOUT_S, CPU)


def form(store, threads, workers: int) -> tuple[Group, list[Group]]:
    publish_epoch(store, "e1")
    size = workers + 1
    joining = [threads.submit(join, store, rank, size) for rank in range(1, size)]
    trainer = Group(store, "e1", SECRET, 0, size, TIMEOUT_S, CPU)
    return trainer, [future.result(TIMEOUT_S) for future in joining]


def send(group: Group, tensors, bucket_bytes: int = 64, **hooks) -> stream.Sent:
    nothing = {"check": lambda: None, "fault": lambda _point: None}
    return stream.send(group, 1, tensors, bucket_bytes, **(nothing | hooks))


def weights(n: int = 10) -> list[tuple[str, torch.Tensor]]:
    return [(f"w{i}", torch.full((i + 1,), float(i))) for i in range(n)]


def test_every_worker_receives_what_was_sent(store, threads):
    trainer, workers = form(store, threads, 2)
    receiving = [threads.submit(stream.receive, worker, 1) for worker in workers]
    sent = send(trainer, weights())
    for future in receiving:
        buckets, digest = future.result(TIMEOUT_S)
        received = [pair for bucket in buckets for pair in unpack(bucket)]
        assert [name for name, _ in received] == [name for name, _ in weights()]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(received, weights(), strict=True))
        assert digest == sent.digest
    assert sent.nbytes == sum(len(bucket.data) for bucket in buckets)
    stream.clear(trainer, 1, sent)
    assert not PrefixStore("rlhf/e1", store).check(["1/0"])


def test_an_epoch_that_is_over_is_refused(store):
    publish_epoch(store, "e2")
    with pytest.raises(TransferFailed, match=r"epoch e1 is over .* at 'e2'"):
        connect_store(HOST, store.port, "e1", TIMEOUT_S)


def test_who_gives_up_early_frees_those_who_came(store, threads):
    publish_epoch(store, "e1")
    came = threads.submit(join, store, 1, 3)

    def refused() -> None:
        raise TransferFailed("the other refused")

    with pytest.raises(TransferFailed, match="the other refused"):
        Group(store, "e1", SECRET, 0, 3, TIMEOUT_S, CPU, check=refused)
    with pytest.raises(TransferFailed, match="gave this epoch up"):
        came.result(TIMEOUT_S / 2)


def test_a_member_that_never_comes_is_noticed_at_the_deadline(store):
    publish_epoch(store, "e1")
    with pytest.raises(TransferFailed, match=r"not all workers joined within 0\.2 s"):
        Group(store, "e1", SECRET, 0, 2, 0.2, CPU)


@pytest.mark.parametrize("received", [0, 1], ids=["waiting for a table", "waiting for bytes"])
def test_an_abort_frees_workers_at_once(store, threads, received):
    trainer, (worker,) = form(store, threads, 1)
    if received:
        trainer.publish_value("1/0", {"specs": [["w", "float32", [4]]]})
    receiving = threads.submit(stream.receive, worker, 1)
    began = time.monotonic()
    trainer.abort()
    with pytest.raises(TransferFailed):
        receiving.result(TIMEOUT_S / 2)
    worker.abort()
    del worker, trainer
    assert time.monotonic() - began < TIMEOUT_S


def test_a_worker_that_does_not_receive_is_noticed_at_the_deadline(store, threads):
    trainer, _ = form(store, threads, 1)
    trainer._timeout_s = 0.5
    big = [("w", torch.zeros(16 << 20))]  # more than socket buffers take
    with pytest.raises(TransferFailed):
        send(trainer, big)


def test_tensors_are_exhausted_whatever_fails(store, threads):
    trainer, (worker,) = form(store, threads, 1)
    receiving: Future = threads.submit(stream.receive, worker, 1)
    yielded = []

    def source():
        for name, tensor in weights():
            yielded.append(name)
            yield name, tensor

    def fail(point: str) -> None:
        if point == "bucket:1":
            raise KeyError(point)

    with pytest.raises(KeyError, match="bucket:1"):
        send(trainer, source(), fault=fail)
    assert yielded == [name for name, _ in weights()]
    trainer.abort()
    with pytest.raises(TransferFailed):
        receiving.result(TIMEOUT_S)


def test_waiting_gives_up_when_told_to(store, threads):
    trainer, (worker,) = form(store, threads, 1)
    refused = threading.Event()
    threads.submit(refused.set)

    def check() -> None:
        if refused.is_set():
            raise TransferFailed("a member refused")

    with pytest.raises(TransferFailed, match="a member refused"):
        send(trainer, [("w", torch.zeros(16 << 20))], check=check)
    began = time.monotonic()
    trainer.abort()
    worker.abort()
    del trainer, worker
    assert time.monotonic() - began < TIMEOUT_S


def test_who_reaches_the_store_without_the_secret_sends_nothing(store, threads):
    """It may read and list all of it, as torch's stores ask nobody for a secret."""
    trainer, (worker,) = form(store, threads, 1)
    stranger = PrefixStore("rlhf/e1", connect_store(HOST, store.port, "e1", TIMEOUT_S))
    trainer.publish_value("1/0", {"specs": [["w", "float32", [4]]]})
    stranger.set("2/0", '{"specs": [["w", "float32", [4611686018427387904]]]}')
    stranger.set("3/0", stranger.get("1/0"))  # the trainer's own, of another bucket
    for update in (2, 3):
        with pytest.raises(TransferFailed, match=f"somebody else than the trainer wrote '{update}/0'"):
            stream.receive(worker, update)
    trainer.abort(), worker.abort()


def test_no_memory_is_taken_for_more_than_the_model(store, threads):
    trainer, (worker,) = form(store, threads, 1)
    trainer.publish_value("1/0", {"specs": [["w", "float32", [1 << 40]]]})
    with pytest.raises(TransferFailed, match=f"take {4 << 40} bytes, more than this model's 100"):
        stream.receive(worker, 1, most=100)
    trainer.abort(), worker.abort()


def test_the_store_listens_where_http_servers_do(store):
    """That of one machine on loopback; torch's own on all interfaces."""
    other = host_store("127.0.0.2", TIMEOUT_S)
    listening = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    addresses = {each.port: each.ip for each in listening if each.port in (store.port, other.port)}
    assert addresses == {store.port: HOST, other.port: "127.0.0.2"}


def test_stores_that_torch_makes_for_one_machine_listen_on_loopback_too():
    """Those of torchrun, and of vLLM's workers, which meet at an address."""
    use_everywhere()
    port = free_port()
    store, _, _ = next(rendezvous(f"tcp://{HOST}:{port}?rank=0&world_size=1"))
    listening = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    assert [each.ip for each in listening if each.port == store.port == port] == [HOST]

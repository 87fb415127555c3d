"""The group on GPUs, without vLLM: NCCL between two, and on one the copies of `SameGpu`."""

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from rlhf_api.contract.run import OUTLIVE_PEERS
from rlhf_trainer.weights import stream
from rlhf_trainer.weights.buckets import pack
from rlhf_trainer.weights.digest import Digest
from rlhf_trainer.weights.group import Group, TransferFailed, host_store, publish_epoch
from rlhf_trainer.weights.same_gpu import WINDOW_BYTES

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
DEVICES = [pytest.param("cuda:1", marks=two_gpus), "cuda:0"]
"""Of a worker: another one, and the trainer's."""
TIMEOUT_S = 20.0  # a worker takes some seconds to start
MONITOR_S = 5
"""After a dump torch's monitor waits for so long, instead of eight minutes, before it ends the process."""
BUCKET = 256 << 20
ROUNDS = 3
ENVIRONMENT = {**OUTLIVE_PEERS, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(MONITOR_S)}


class Worker:
    """One on another host, as NCCL sees it, is reached by TCP, and may share a GPU with another."""

    def __init__(self, port: int, device: str, host: str = "") -> None:
        command = [
            sys.executable,
            "-m",
            "tests.unit.trainer.weights.in_group.nccl_worker",
            str(port),
            str(TIMEOUT_S),
            device,
        ]
        environment = os.environ | ENVIRONMENT | ({"NCCL_HOSTID": host} if host else {})
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def do(self, *words: object) -> None:
        print(*words, file=self.process.stdin, flush=True)

    def read_words(self) -> list[str]:
        return self.process.stdout.readline().split()

    def ends(self) -> int:
        """With this exit code."""
        self.process.stdin.close()
        return self.process.wait(60)


@pytest.fixture(scope="module", autouse=True)
def as_in_a_trainer():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.fixture
def store():
    return host_store("127.0.0.1", TIMEOUT_S)


@pytest.fixture
def workers(store):
    started = []

    def start(device: str, host: str = "") -> Worker:
        started.append(Worker(store.port, device, host))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait()


def form(store, epoch: str, *workers: Worker) -> Group:
    publish_epoch(store, epoch)
    size = 1 + len(workers)
    for rank, worker in enumerate(workers, 1):
        worker.do("join", epoch, rank, size)
    return Group(store, epoch, "a secret", 0, size, TIMEOUT_S, torch.device("cuda:0"))


def tensors(count: int = 16) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator("cuda:0").manual_seed(0)
    return [
        (f"w{i}", torch.randn(128 << 20, generator=generator, device="cuda:0", dtype=torch.bfloat16))
        for i in range(count)
    ]


def send(group: Group, update: int, weights, *workers: Worker, fault=lambda _point: None) -> stream.Sent:
    for worker in workers:
        worker.do("receive", update)
    return stream.send(group, update, weights, BUCKET, lambda: None, fault)


@pytest.mark.parametrize("device", DEVICES)
def test_broadcast_is_whole_and_fast(device, store, workers, capsys):
    worker = workers(device)
    group = form(store, "1", worker)
    weights = tensors()
    for update in range(1, ROUNDS + 1):
        began = time.monotonic()
        sent = send(group, update, weights, worker)
        seconds = time.monotonic() - began
        assert worker.read_words() == ["received", sent.digest]
        with capsys.disabled():
            print(f"\n{sent.nbytes / 1e9:.1f} GB in {seconds:.3f} s, {sent.nbytes / seconds / 1e9:.0f} GB/s")
    assert worker.ends() == 0
    on_cpu = Digest()
    for bucket in pack(((name, tensor.cpu()) for name, tensor in weights), BUCKET, torch.device("cpu")):
        on_cpu.update(bucket)
    assert on_cpu.hexdigest() == sent.digest


@pytest.mark.parametrize("device", DEVICES)
def test_a_worker_killed_in_mid_broadcast_is_noticed_and_a_new_epoch_works(device, store, workers):
    worker = workers(device)
    group = form(store, "1", worker)
    weights = tensors(8)
    send(group, 1, weights, worker)
    began = time.monotonic()
    with pytest.raises(TransferFailed):
        send(group, 2, weights, worker, fault=killing(worker))
    assert time.monotonic() - began < TIMEOUT_S + 2
    group.abort()
    torch.cuda.synchronize()
    reborn = workers(device)
    sent = send(form(store, "2", reborn), 1, weights, reborn)
    assert reborn.read_words() == ["received", sent.digest]
    assert reborn.ends() == 0


def killing(worker: Worker):
    def kill(point: str) -> None:
        if point == "bucket:3":
            worker.process.kill()
            worker.process.wait()

    return kill


@two_gpus
def test_a_peer_lost_over_tcp_costs_the_others_one_epoch_and_not_their_lives(store, workers):
    near, far = workers("cuda:1"), workers("cuda:1", host="another")
    group = form(store, "1", near, far)
    weights = tensors(8)
    sent = send(group, 1, weights, near, far)
    assert near.read_words() == far.read_words() == ["received", sent.digest]
    with pytest.raises(TransferFailed):
        send(group, 2, weights, near, far, fault=killing(near))
    group.abort()
    assert far.read_words()[0] == "failed"
    began = time.monotonic()
    group = form(store, "2", far)
    sent = send(group, 1, weights, far)
    assert far.read_words() == ["received", sent.digest]
    assert time.monotonic() - began < TIMEOUT_S, "nobody waits for what is left of the group before"
    with pytest.raises(subprocess.TimeoutExpired):
        far.process.wait(3 * MONITOR_S)
    sent = send(group, 2, weights, far)
    assert far.read_words() == ["received", sent.digest]


@pytest.mark.parametrize("device", DEVICES)
def test_an_abort_frees_the_worker_at_once(device, store, workers):
    worker = workers(device)
    group = form(store, "1", worker)
    worker.do("receive", 1)
    group.publish_value(
        "1/0", {"specs": [["w", "float32", [1 << 20]]]}
    )  # the worker waits for bytes that never come
    group.abort()
    failed, seconds, *reason = worker.read_words()
    assert failed == "failed", reason
    assert float(seconds) < TIMEOUT_S / 2
    assert worker.ends() == 0


def test_workers_of_the_trainer_s_gpu_and_of_another_get_the_same(store, workers):
    """The first ones' windows take turns, also where a tensor is larger than one."""
    devices = ["cuda:0", "cuda:0", *(["cuda:1"] if torch.cuda.device_count() > 1 else [])]
    some = [workers(device) for device in devices]
    group = form(store, "1", *some)
    large = torch.arange(3 * WINDOW_BYTES // 8 + 5, device="cuda:0", dtype=torch.int64)
    for update in (1, 2):
        sent = send(group, update, [("small", large[:7]), ("large", large), *tensors(2)], *some)
        assert [worker.read_words() for worker in some] == [["received", sent.digest]] * len(some)
    assert [worker.ends() for worker in some] == [0] * len(some)

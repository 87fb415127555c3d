"""The NCCL side of the group, without vLLM: needs two GPUs."""

import subprocess
import sys
import time

import pytest
import torch

from rlhf_trainer.weights import stream
from rlhf_trainer.weights.buckets import pack
from rlhf_trainer.weights.digest import Digest
from rlhf_trainer.weights.group import Group, TransferFailed, host_store, publish_epoch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
TIMEOUT_S = 20.0  # a worker takes some seconds to start
BUCKET = 256 << 20
ROUNDS = 3


@pytest.fixture
def store():
    return host_store("127.0.0.1", TIMEOUT_S)


def form(store, epoch: str, updates: int) -> tuple[Group, subprocess.Popen]:
    publish_epoch(store, epoch)
    arguments = [str(store.port), epoch, str(TIMEOUT_S), str(updates)]
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.weights.nccl_worker", *arguments], stdout=subprocess.PIPE, text=True
    )
    return Group(store, epoch, 0, 2, TIMEOUT_S, torch.device("cuda:0")), worker


def tensors(count: int = 16) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator("cuda:0").manual_seed(0)
    return [
        (f"w{i}", torch.randn(128 << 20, generator=generator, device="cuda:0", dtype=torch.bfloat16))
        for i in range(count)
    ]


def send(group: Group, update: int, weights, fault=lambda _point: None) -> stream.Sent:
    return stream.send(group, update, weights, BUCKET, lambda: None, fault)


def test_broadcast_is_whole_and_fast(store, capsys):
    group, worker = form(store, "1", ROUNDS)
    weights = tensors()
    for update in range(1, ROUNDS + 1):
        began = time.monotonic()
        sent = send(group, update, weights)
        seconds = time.monotonic() - began
        assert worker.stdout.readline().split() == ["received", sent.digest]
        with capsys.disabled():
            print(f"\n{sent.nbytes / 1e9:.1f} GB in {seconds:.3f} s, {sent.nbytes / seconds / 1e9:.0f} GB/s")
    assert worker.wait(60) == 0
    on_cpu = Digest()
    for bucket in pack(((name, tensor.cpu()) for name, tensor in weights), BUCKET, torch.device("cpu")):
        on_cpu.update(bucket)
    assert on_cpu.hexdigest() == sent.digest


def test_a_worker_killed_in_mid_broadcast_is_noticed_and_a_new_epoch_works(store):
    group, worker = form(store, "1", 2)
    weights = tensors(8)
    send(group, 1, weights)

    def kill(point: str) -> None:
        if point == "bucket:3":
            worker.kill()
            worker.wait()

    began = time.monotonic()
    with pytest.raises(TransferFailed):
        send(group, 2, weights, kill)
    assert time.monotonic() - began < TIMEOUT_S + 2
    group.abort()
    torch.cuda.synchronize()
    again, reborn = form(store, "2", 1)
    sent = send(again, 1, weights)
    assert reborn.stdout.readline().split() == ["received", sent.digest]
    assert reborn.wait(60) == 0


def test_an_abort_frees_the_worker_at_once(store):
    group, worker = form(store, "1", 1)
    group.tell("1/0", {"specs": [["w", "float32", [1 << 20]]]})  # the worker waits for bytes that never come
    group.abort()
    failed, seconds, *why = worker.stdout.readline().split()
    assert failed == "failed", why
    assert float(seconds) < TIMEOUT_S / 2
    assert worker.wait(60) == 0

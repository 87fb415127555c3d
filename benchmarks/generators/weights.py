"""Weights from the trainer to vLLM: how long they travel, and how long generation stands still.

    .venv/bin/python benchmarks/generators/weights.py --model qwen2.5-7b [--buckets 256 512 1024] \
        [--kill] [--adapter 16]

One trainer on the first GPU, with random weights; generators, as their role starts them, on the next ones. Where GPUs
are too few, the last generators share those of the others: their wire is then TCP. `--tensor-parallel` gives each
generator so many GPUs. On a machine without GPUs the same with gloo and `--model tiny`. `--intervals`: how many tokens
of an answer the server sends at a time under load; those of one answer, whose gaps are measured, it sends as they come.
Beside it, in the same run: a raw broadcast of the same bytes. `--kill` ends a generator with SIGKILL in the middle of a
broadcast. `--adapter` gives the model an adapter of that rank in the end, which travels alone. Prints one JSON line for
each figure.
"""

import argparse
import secrets
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import boundaries
import raw_broadcast
import torch
from adapters import Adapted
from serving import Server, logprobs, make_model, renew, run_config, save, served_logprobs, tell
from traffic import Load

from rlhf_trainer.rollout.clients.vllm_client import STREAM_INTERVAL
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster
from rlhf_trainer.weights.buckets import pack
from rlhf_trainer.weights.digest import Digest

TIMEOUT_S = 60.0
CHECKED = 4
"""Responses that went on over new weights whose log-probabilities are computed again."""
SETTLE_SECONDS = 5.0
"""Under load, until the answers under way have been read again with the new weights."""


def local_cost(model: Any, bucket: int, device: torch.device) -> dict[str, float]:
    """Seconds to lay the weights out in buckets, and to digest them too."""

    def once(digest: bool) -> float:
        raw_broadcast.synchronize(device)
        began, made = time.monotonic(), Digest()
        for each in pack(model.named_parameters(), bucket, device):
            if digest:
                made.update(each)
        made.hexdigest()
        raw_broadcast.synchronize(device)
        return time.monotonic() - began

    once(True)
    return {"pack": min(once(False) for _ in range(3)), "pack_and_digest": min(once(True) for _ in range(3))}


class Bench:
    """The trainer's side of every measurement."""

    def __init__(self, model: Any, servers: list[Server], http: HttpClient, device: torch.device) -> None:
        self.model, self.servers, self.http, self.device = model, servers, http, device
        self.version, self.fault = 0, ""
        self.action: Callable[[], None] = lambda: None
        self.at: dict[str, float] = {}

    def sync(self, bucket: int, timeout_s: float = TIMEOUT_S, *, keep: bool = False) -> Broadcaster:
        settings = {
            "host": "127.0.0.1",
            "timeout_s": timeout_s,
            "bucket_bytes": bucket,
            "device": self.device,
            "keep": keep,
        }
        return Broadcaster(self.http, fault=self._at, **settings)

    def _at(self, point: str) -> None:
        self.at[point] = time.monotonic()
        if point == self.fault:
            self.fault = ""
            self.action()

    def round(self, sync: Broadcaster, *, count: int = 1, check: bool = True) -> dict[str, Any]:
        """New weights to `count` servers: what `BroadcastReport` says, and that both sides compute the same."""
        self.version += 1
        old = logprobs(self.model) if check else None
        renew(self.model, self.version)
        raw_broadcast.synchronize(self.device)
        members = [server.member() for server in self.servers[:count]]
        report = sync.send(members, lambda: iter(self.model.named_parameters()), self.version)
        measured = {"seconds": report.seconds, "wire": report.wire_seconds, "pause": report.pause_seconds}
        if {"before-commit", "committed"} <= self.at.keys():
            measured["pause_as_called"] = (
                self.at["committed"] - self.at["before-commit"]
            )  # with the way there and back
        measured |= {"digest_equal": len(report.holders), "attempts": report.attempts, "bytes": report.bytes}
        if report.lost:
            measured["lost"] = next(iter(report.lost.values()))[:200]
        elif old is not None:
            new = logprobs(self.model)
            served = [served_logprobs(self.http, server.address) for server in self.servers[:count]]
            measured["logprob_error"] = max((each - new).abs().mean().item() for each in served)
            measured["from_old_weights"] = min((each - old).abs().mean().item() for each in served)
        return measured


def proof(bench: Bench, sync: Broadcaster, rounds: int) -> None:
    """Seconds of a proof of the weights that are served: of all of them after a swap, then of a slice."""
    for number in range(rounds):
        measured, seconds = bench.round(sync, check=False), []
        for _ in range(10):
            began = time.monotonic()
            changes = sync.changed([bench.servers[0].member()])
            seconds.append(time.monotonic() - began)
            assert not changes, changes
        slices = {"slice_median": median(seconds[1:]), "slice_longest": max(seconds[1:])}
        tell({"what": "proof", "round": number, "all_and_a_slice": seconds[0], **slices, **measured})


def under_load(bench: Bench, bucket: int, rounds: int, answers: int, tokens: int, interval: int) -> None:
    """To one generator with so many answers of so many tokens under way, sent so many at a time, as
    `rollout.inFlight` says: interrupted, which the trainer continues, or going on in their streams. Also the longest
    times without a token: in the second before the weights come, across the swap, and in the seconds after it. Of
    responses that went on, whether each token bears the version that sampled it."""
    for keep in (False, True):
        sync = bench.sync(bucket, keep=keep)
        bench.round(sync, check=False)
        load = Load(bench.http, bench.servers[0].member(), answers, tokens, interval)
        now = time.monotonic()
        before = now - 1.0, now
        mode = {"in_flight": "keep" if keep else "recompute", "load": answers, "interval": interval}
        for number in range(rounds):
            measured = bench.round(sync, check=False)
            sync.changed([bench.servers[0].member()])
            time.sleep(SETTLE_SECONDS)
            began, ended = bench.at["before-commit"], bench.at["committed"]
            spans = {"before": before, "across": (began, ended), "after": (ended, time.monotonic())}
            gaps = {
                f"gap_{when}_{of}": seconds
                for when, span in spans.items()
                for of, seconds in load.gaps(*span).items()
            }
            tell({"what": "sync under load", **mode, "round": number, **gaps, **measured})
        load.stop()
        sync.close()
        if keep:
            several = [work for work in load.works if len({*work.responses[0].versions}) > 1][:CHECKED]
            measured = boundaries.errors(bench.model, partial(renew, bench.model), several)
            renew(bench.model, bench.version)
            tell({"what": "versions of tokens", **mode, "responses": len(several), **measured})


def to_several(bench: Bench, sync: Broadcaster, rounds: int) -> None:
    """To all generators, then to fewer, so that all are past their first weights where numbers are compared; ends the
    benchmark where one of them does not get the weights."""
    for count in range(len(bench.servers), 0, -1):
        shared = [server.name for server in bench.servers[:count] if server.apart]
        for number in range(rounds):
            measured = bench.round(sync, count=count)
            tell({"what": "sync", "generators": count, "by_tcp": shared, "round": number, **measured})
            if "lost" in measured:
                raise RuntimeError(f"{count} generators did not all get the weights")


def kill(bench: Bench, bucket: int, at: int) -> None:
    """SIGKILL of one in the middle of a broadcast to all; then it comes back."""
    sync, victim, count = bench.sync(bucket, timeout_s=30.0), bench.servers[0], len(bench.servers)
    tell({"what": "before the kill", **bench.round(sync, count=count)})
    killed = []

    def act() -> None:
        victim.kill()
        killed.append(time.monotonic())

    bench.fault, bench.action = f"bucket:{at}", act
    measured = bench.round(sync, count=count, check=False)
    went_on = time.monotonic() - killed[0]
    began = time.monotonic()
    bench.model(torch.tensor([[1, 2, 3]], device=bench.device))
    raw_broadcast.synchronize(bench.device)
    forward = time.monotonic() - began
    tell({"what": "killed", "trainer_goes_on_after": went_on, "a_forward_then": forward, **measured})
    ready = victim.launch().wait_ready()
    tell({"what": "rejoined", "start": ready, **bench.round(sync, count=count)})
    sync.close()


def adapter(bench: Bench, bucket: int, rounds: int, rank: int) -> None:
    """The base once, with the first of so many adapters."""
    sync, adapted = bench.sync(bucket), Adapted(bench.model, rank)
    for number in range(rounds):
        bench.version += 1
        measured = adapted.round(sync, [server.member() for server in bench.servers], bench.version)
        tell({"what": "adapter", "rank": rank, "round": number, **measured})
    sync.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--buckets", type=int, nargs="+", default=[256, 512, 1024], metavar="MEGABYTES")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--generators", type=int, default=1, help="each on the next GPU after the trainer's")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of each generator")
    parser.add_argument("--load", type=int, default=256, help="answers under way in the rounds under load")
    parser.add_argument(
        "--intervals", type=int, nargs="+", default=[STREAM_INTERVAL], help="tokens sent at a time under load"
    )
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--adapter", type=int, metavar="RANK")
    parser.add_argument("--logs", type=Path, help="where the servers' logs go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder), torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))


def measure(options: argparse.Namespace, folder: Path, device: torch.device) -> None:
    gpu = device.type == "cuda"
    logs = options.logs or folder
    began = time.monotonic()
    model = make_model(options.model, device)
    nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if not gpu or torch.cuda.device_count() > 1:
        seconds = median(raw_broadcast.seconds(nbytes, device, "cuda:1" if gpu else "cpu")[1:])
        tell({"what": "raw broadcast", "bytes": nbytes, "seconds": seconds, "GB/s": nbytes / seconds / 1e9})
    save(model, folder / "model")
    tell({"what": "model made and saved, raw measured", "seconds": time.monotonic() - began})
    engine = {"kv-cache-memory-bytes": 20 << 30, "gpu-memory-utilization": 0.4} if gpu else {}
    parts = options.tensor_parallel
    config = run_config(
        folder / "model", folder, "bfloat16" if gpu else "float32", 1024 if gpu else 100, engine, parts
    )
    token = secrets.token_hex(8)
    gpus = torch.cuda.device_count() if gpu else options.generators * parts + 1
    servers = []
    for i in range(options.generators):
        places = range(i * parts + 1, (i + 1) * parts + 1)
        taken = ",".join(str(place % gpus) for place in places)
        apart = places.stop > gpus
        servers.append(Server(logs, f"generator-{i}", taken, config, token=token, apart=apart))
    try:
        for server in servers:
            server.launch()
        for megabytes in options.buckets:
            tell({"what": "local", "bucket": megabytes, **local_cost(model, megabytes << 20, device)})
        tell({"what": "generators ready", "seconds": max(server.wait_ready() for server in servers)})
        with HttpClient(token) as http:
            bench = Bench(model, servers, http, device)
            for megabytes in options.buckets:
                sync = bench.sync(megabytes << 20)
                for number in range(options.rounds):
                    tell({"what": "sync", "bucket": megabytes, "round": number, **bench.round(sync)})
                sync.close()
            sync = bench.sync(options.buckets[-1] << 20)
            proof(bench, sync, options.rounds)
            sync.close()
            for interval in options.intervals:
                tokens = 900 if gpu else 60
                under_load(bench, options.buckets[-1] << 20, options.rounds, options.load, tokens, interval)
            sync = bench.sync(options.buckets[-1] << 20)
            if options.generators > 1:
                to_several(bench, sync, options.rounds)
            sync.close()
            if options.kill:
                kill(bench, options.buckets[0] << 20, at=nbytes // (options.buckets[0] << 20) // 2)
            if options.adapter:
                adapter(bench, options.buckets[0] << 20, options.rounds, options.adapter)
    finally:
        for server in servers:
            server.kill()


if __name__ == "__main__":
    main()

"""Weights from ZeRO-3 shards: what it costs generation and the wire that each tensor is gathered before it is sent.

    .venv/bin/python benchmarks/generators/gathered.py --model qwen2.5-7b [--ranks 2] [--bucket 512]

The trainer's ranks on the first GPUs, one generator on the next or, where there is none, beside the last rank. In the
same run, to the same generator: the same weights from one rank that holds them whole. Digests tell that both sent the
same. Prints one JSON line for each figure; on a machine without GPUs the same with gloo and `--model tiny`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from serving import Server, make_model, run_config, save, tell

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster, BroadcastReport

Named = Iterator[tuple[str, torch.Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bucket", type=int, default=512, metavar="MEGABYTES")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind, of which the first warms up")
    parser.add_argument("--logs", type=Path, help="where the server's log goes")
    parser.add_argument("--generator", help=argparse.SUPPRESS)  # its address: this is one of the ranks
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: the first round warms up, so at least 2")
    if options.generator:
        rank(options)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu = torch.cuda.is_available()
        save(make_model(options.model, torch.device("cuda" if gpu else "cpu")), folder / "model")
        if gpu:
            torch.cuda.empty_cache()  # the first rank's room
        engine = {"kv-cache-memory-bytes": 4 << 30, "gpu-memory-utilization": 0.3} if gpu else {}
        dtype = "bfloat16" if gpu else "float32"
        config = run_config(folder / "model", folder, dtype, 100, engine)
        place = str(min(options.ranks, torch.cuda.device_count() - 1) if gpu else 0)
        server = Server(options.logs or folder, "generator-0", place, config)
        try:
            server.launch().wait_ready()
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command = [*torchrun, f"--nproc-per-node={options.ranks}", __file__, "--model", options.model]
            command += ["--bucket", str(options.bucket), "--rounds", str(options.rounds)]
            command += ["--generator", server.address]
            subprocess.run(command, check=True, env=os.environ | {"RLHF_TOKEN": server.token})
        finally:
            server.kill()


def rank(options: argparse.Namespace) -> None:
    """One rank of the trainer, under torchrun."""
    ranks = Ranks.join(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = make_model(options.model, ranks.device)
    with HttpClient(os.environ["RLHF_TOKEN"]) as http:
        sender = Sender(ranks, http, options) if ranks.first else None
        whole = [report for _ in range(options.rounds) if (report := alone(sender, model))]
        engine = sharded(model, ranks)
        gathered = [report for _ in range(options.rounds) if (report := together(sender, ranks, engine))]
        if sender is not None:
            compare(whole, gathered)
            sender.sync.close()
    torch.distributed.destroy_process_group()


def sharded(model: Any, ranks: Ranks) -> TrainedModel:
    precision = {"bf16": {"enabled": True}} if ranks.device.type == "cuda" else {}
    return TrainedModel(
        model,
        Optimizer(),
        Trainer(),
        deepspeed={**precision, "zero_optimization": {"stage": 3}},
        micro_batch_tokens=1024,
        pad_token_id=1,
    )


class Sender:
    """Rank 0's way to the generator."""

    def __init__(self, ranks: Ranks, http: HttpClient, options: argparse.Namespace) -> None:
        self.sync = Broadcaster(
            http, host="127.0.0.1", timeout_s=60.0, bucket_bytes=options.bucket << 20, device=ranks.device
        )
        self._member = Member(role=Role.GENERATOR, name="generator-0", uid="1", address=options.generator)
        self._version = 0

    def send(self, tensors: Callable[[], Named]) -> BroadcastReport:
        self._version += 1
        report = self.sync.send([self._member], tensors, self._version)
        assert report.holders, report.lost
        return report


def alone(sender: Sender | None, model: Any) -> BroadcastReport | None:
    return sender.send(lambda: iter(model.named_parameters())) if sender else None


def together(sender: Sender | None, ranks: Ranks, engine: TrainedModel) -> BroadcastReport | None:
    """As `rlhf_trainer.weights.publisher` does: the other ranks gather in step."""

    def announced() -> Named:
        ranks.agree(lambda: True)
        yield from engine.named_tensors()

    if sender is None:
        while ranks.agree(bool):
            for _ in engine.named_tensors():
                pass
        return None
    report = sender.send(announced)
    ranks.agree(lambda: False)
    return report


def compare(whole: list[BroadcastReport], gathered: list[BroadcastReport]) -> None:
    """The first round of each kind warms up: connections, kernels, the generator's list of copies."""
    by_kind = {}
    for what, reports in (("whole, one rank", whole), ("gathered", gathered)):
        for report in reports:
            tell(
                {
                    "what": what,
                    "pause": report.pause_seconds,
                    "wire": report.wire_seconds,
                    "s": report.seconds,
                }
            )
        by_kind[what] = reports[1:]
    pauses, wires = (
        {what: median(getattr(r, name) for r in reports) for what, reports in by_kind.items()}
        for name in ("pause_seconds", "wire_seconds")
    )
    one, both = by_kind
    tell(
        {
            "what": "gathered beside whole",
            "bytes": gathered[0].bytes,
            "pause_ratio": pauses[both] / pauses[one],
            "wire_ratio": wires[both] / wires[one],
            "digests_equal": len({report.digest for report in (*whole, *gathered)}) == 1,
        }
    )


if __name__ == "__main__":
    main()

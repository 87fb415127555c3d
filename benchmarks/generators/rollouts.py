"""Rollouts: our client over HTTP against vLLM's own offline throughput, for the same prompts and lengths in one run.

    .venv/bin/python benchmarks/generators/rollouts.py --model qwen2.5-7b [--requests 1024] [--answer 256]

The generator role serves on the second GPU, with weights from this process as from a trainer, `LLM.generate` runs on
the first; both are up before either is measured, and they are measured one after the other. With and without a seed for
each request, which our client always gives. Prints one JSON line for each figure; `driver_cores` is the CPU time of
this process, the client, over the time of a round.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from serving import Server, make_model, run_config, save, tell

from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.rollout.clients import vllm_client as client_module
from rlhf_trainer.rollout.clients.vllm_client import VllmClient, request_seed
from rlhf_trainer.rollout.in_flight.rounds import start_round
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster

EOS = 0
SHORTEST, LONGEST = 64, 128
KINDS = ("warm-up", "seeded", "unseeded")


def prompts(kind: str, count: int, vocabulary: int) -> list[list[int]]:
    """Other prompts for each kind of round, so that no round finds them in a cache; the same on both sides."""
    dice = random.Random(kind)
    return [
        [dice.randrange(2, vocabulary) for _ in range(dice.randint(SHORTEST, LONGEST))] for _ in range(count)
    ]


def offline(options: argparse.Namespace) -> None:
    """vLLM alone, in a process of its own: says when it is ready, waits for a line, prints a figure for each kind."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    arguments = json.loads(options.offline)
    model = LLM(**{name.replace("-", "_"): value for name, value in arguments.items()})
    print("ready", flush=True)
    sys.stdin.readline()
    for kind in KINDS:
        requests = prompts(kind, options.requests, options.vocabulary)
        settings = {"temperature": 1.0, "max_tokens": options.answer, "stop_token_ids": [EOS], "logprobs": 0}
        sampling = [
            SamplingParams(**settings, seed=request_seed(0, str(i)) if "unseeded" not in kind else None)
            for i in range(len(requests))
        ]
        began = time.monotonic()
        outputs = model.generate(
            [TokensPrompt(prompt_token_ids=p) for p in requests], sampling, use_tqdm=False
        )
        seconds = time.monotonic() - began
        tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
        tell({"what": "offline", "kind": kind, "tokens": tokens, "tokens/s": tokens / seconds})


def publish(server: Server, model: Any, device: torch.device) -> None:
    """A generator answers with a weight version, so it needs one."""
    with HttpClient(server.token) as http:
        sync = Broadcaster(http, host="127.0.0.1", timeout_s=60.0, bucket_bytes=256 << 20, device=device)
        report = sync.send(
            [server.member()], lambda: ((n, p.detach()) for n, p in model.named_parameters()), 1
        )
        assert report.holders, report.lost


def online(server: Server, options: argparse.Namespace) -> None:
    assert server.config is not None
    member = server.member()
    seeded = request_seed
    with HttpClient(server.token) as http:
        client = VllmClient(
            http,
            sampling=server.config.spec.sampling,
            seed=0,
            ends=[EOS],
        )
        for kind in KINDS:
            requests = [
                Prompt(id=str(i), tokens=tuple(tokens), row={})
                for i, tokens in enumerate(prompts(kind, options.requests, options.vocabulary))
            ]
            client_module.request_seed = seeded if "unseeded" not in kind else lambda *_: None
            began, cpu = time.monotonic(), time.process_time()
            limits, works = (
                Limits(options.requests, 600),
                [PartialRollout.begin(prompt, 1) for prompt in requests],
            )
            current = {"current": lambda: {member.uid: member}}
            outcome = start_round(http, client, works, [member], limits=limits, **current).result(600)
            seconds, used = time.monotonic() - began, time.process_time() - cpu
            assert len(outcome.results) == len(works), outcome
            tokens = sum(len(response.tokens) for _, work in outcome.results for response in work.responses)
            figures = {"answers": len(outcome.results), "tokens": tokens, "tokens/s": tokens / seconds}
            tell({"what": "our client", "kind": kind, **figures, "driver_cores": used / seconds})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--answer", type=int, default=256)
    parser.add_argument("--logs", type=Path, help="where the server's log goes")
    parser.add_argument("--offline", help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.offline:
        offline(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder), torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))


def measure(options: argparse.Namespace, folder: Path, device: torch.device) -> None:
    gpu = device.type == "cuda"
    model = make_model(options.model, device)
    save(model, folder / "model")
    options.vocabulary = model.config.vocab_size
    engine: dict[str, Any] = {"max-num-seqs": 1024, "max-num-batched-tokens": 8192}
    if gpu:
        engine |= {"kv-cache-memory-bytes": 60 << 30}
        extra: dict[str, Any] = {"dtype": "bfloat16"}
    else:
        extra = {"dtype": "float32", "enforce-eager": True, "distributed-executor-backend": "uni"}
        extra |= {"kv-cache-memory-bytes": 256 << 20}
    config = run_config(folder / "model", folder, extra["dtype"], options.answer, engine)
    server = Server(options.logs or folder, "generator", "1", config)
    arguments = {"model": str(folder / "model"), "max-model-len": LONGEST + options.answer}
    arguments |= {"generation-config": "vllm", "logprobs-mode": "processed_logprobs", **engine, **extra}
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "1"}
    if not gpu:
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    command = [sys.executable, __file__, "--offline", json.dumps(arguments)]
    command += ["--requests", str(options.requests), "--answer", str(options.answer)]
    command += ["--vocabulary", str(options.vocabulary)]
    alone = None
    try:
        server.launch()
        tell({"what": "generator ready", "seconds": server.wait_ready()})
        publish(server, model, device)
        del model
        if gpu:
            torch.cuda.empty_cache()
        with (server.folder / "offline.log").open("ab") as log:
            alone = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert alone.stdin is not None
        assert alone.stdout is not None
        for line in alone.stdout:  # vLLM writes lines of its own there
            if line.strip() == "ready":
                break
        online(server, options)
        alone.stdin.write("go\n")
        alone.stdin.flush()
        for line in alone.stdout:
            if line.startswith("{"):
                print(line, end="", flush=True)
        alone.wait(60)
    finally:
        server.kill()
        if alone is not None:
            alone.kill()


if __name__ == "__main__":
    main()

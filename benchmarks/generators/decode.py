"""A step in which vLLM gives each of some requests one token: its milliseconds, and those of the GPU's kernels in it.

    .venv/bin/python benchmarks/generators/decode.py --model qwen2.5-1.5b [--requests 1 8 64 256] [--tokens 200]

vLLM alone, all of it in this process (`LLM.generate`), asked as by the generator's role: with a seed and the
log-probability of each sampled token. `--profile` adds the time of the kernels in a step, and prints the host's
functions that take longest.
"""

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from io import StringIO
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}

import torch
from serving import make_model, save, tell


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--set", default="{}", help="more of vLLM's arguments, as JSON")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    from vllm import LLM

    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(options.model, torch.device("cuda" if gpu else "cpu"))
        save(model, Path(folder))
        del model
        torch.cuda.empty_cache()
        more: dict[str, Any] = {"gpu_memory_utilization": 0.3, "max_model_len": 2048}
        more |= {"generation_config": "vllm", "logprobs_mode": "processed_logprobs"}
        if not gpu:  # as the generator's role starts it there
            more |= {"enforce_eager": True, "dtype": "float32", "enable_chunked_prefill": False}
            more |= {"max_num_batched_tokens": 128 * max(2048 // 128, *options.requests)}
        engine = LLM(model=folder, disable_log_stats=True, **more, **json.loads(options.set))
        generate(engine, max(options.requests), options.tokens)
        for requests in options.requests:
            short = generate(engine, requests, 1 + options.tokens // 10)
            whole = generate(engine, requests, 1 + options.tokens)
            steps = options.tokens - options.tokens // 10
            figures: dict[str, Any] = {"requests": requests, "step_ms": 1e3 * (whole - short) / steps}
            if options.profile:
                figures |= profile(engine, requests)
            tell(figures)


def generate(engine: Any, requests: int, tokens: int) -> float:
    """Seconds of so many requests, each with so many tokens."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = [
        TokensPrompt(prompt_token_ids=[40 + (7 * i + j) % 200 for j in range(128)]) for i in range(requests)
    ]
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True, "logprobs": 0}
    settings |= {"detokenize": False}
    sampling = [SamplingParams(**settings, seed=1000 + i) for i in range(requests)]
    began = time.perf_counter()
    engine.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - began


def profile(engine: Any, requests: int) -> dict[str, Any]:
    """Milliseconds of the kernels in a step, all and the longest by name; the host's functions are printed."""
    from torch.profiler import ProfilerActivity

    tokens, figures = 60, dict[str, Any]()
    if torch.cuda.is_available():
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
            generate(engine, requests, tokens)
        kernels = {
            event.key[:60]: event.self_device_time_total / tokens / 1e3 for event in trace.key_averages()
        }
        longest = sorted(kernels.items(), key=lambda item: -item[1])[:12]
        figures = {
            "kernels_ms": sum(kernels.values()),
            "longest": {name: round(ms, 3) for name, ms in longest},
        }
    with cProfile.Profile() as host:
        generate(engine, requests, tokens)
    text = StringIO()
    pstats.Stats(host, stream=text).sort_stats("tottime").print_stats(22)
    print(text.getvalue()[-3600:], flush=True)
    return figures


if __name__ == "__main__":
    main()

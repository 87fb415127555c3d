"""vLLM's own NCCL weight transfer (0.25's interface), for comparison."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from serving import Server, logprobs, renew, served_logprobs, tell

from rlhf_trainer.transport.http import HttpClient


def own_command(model: Path, engine: dict[str, Any]) -> list[str]:
    options = {
        "model": str(model),
        "served-model-name": "policy",
        "host": "127.0.0.1",
        "dtype": "bfloat16",
        "max-model-len": 1152,
        "logprobs-mode": "processed_logprobs",
        "weight-transfer-config": json.dumps({"backend": "nccl"}),
        **engine,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    settings = ["VLLM_SERVER_DEV_MODE=1", "VLLM_NO_USAGE_STATS=1"]
    return ["env", *settings, sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]


def own_rounds(server: Server, model: Any, rounds: int, port: int) -> None:
    """Pause, send, resume, as vLLM's documentation has it, packed and one tensor at a time."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    with HttpClient(server.token) as http, ThreadPoolExecutor(1) as pool:

        def post(path: str, body: Any = None) -> None:
            http.run(http.json("POST", server.address + path, body, timeout=120))

        info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
        joining = pool.submit(post, "/init_weight_transfer_engine", {"init_info": info})
        group = NCCLWeightTransferEngine.trainer_init(info)
        joining.result(120)
        named = list(model.named_parameters())
        for number in range(2 * rounds):
            packed = number < rounds
            renew(model, 1000 + number)
            torch.cuda.synchronize()
            update = {
                "names": [name for name, _ in named],
                "dtype_names": [str(p.dtype).removeprefix("torch.") for _, p in named],
                "shapes": [list(p.shape) for _, p in named],
                "packed": packed,
            }
            began = time.monotonic()
            post("/pause?mode=keep")
            paused = time.monotonic()
            post("/start_weight_update")
            receiving = pool.submit(post, "/update_weights", {"update_info": update})
            sending = {"group": group, "packed": packed}
            NCCLWeightTransferEngine.trainer_send_weights(iter(named), sending)
            torch.cuda.synchronize()
            receiving.result(120)
            post("/finish_weight_update")
            updated = time.monotonic()
            post("/resume")
            ended = time.monotonic()
            error = (served_logprobs(http, server.address) - logprobs(model)).abs().mean().item()
            figures = {"pause": ended - began, "update": updated - paused, "logprob_error": error}
            tell({"what": "vLLM's own engine", "packed": packed, "round": number % rounds, **figures})

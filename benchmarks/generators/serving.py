"""Models of real shapes with random weights, and vLLM servers of them, as the benchmarks need them."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config

from rlhf_api.contract.run import Member, Process, RunConfig, environment
from rlhf_api.manifest.load import parse
from rlhf_api.roles import Role
from rlhf_trainer.transport.http import HttpClient

SHAPES = {
    "tiny": (64, 128, 2, 2, 1, 512, True),
    "qwen2.5-0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "qwen2.5-1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "qwen2.5-7b": (3584, 18944, 28, 28, 4, 152064, False),
}
"""Hidden and intermediate size, layers, heads, key-value heads, vocabulary, tied embeddings."""
READY_SECONDS = 300.0
TEXT = list(range(40, 100))


def make_model(shape: str, device: torch.device) -> PreTrainedModel:
    hidden, intermediate, layers, heads, key_values, vocabulary, tied = SHAPES[shape]
    config = Qwen2Config(  # type: ignore[call-arg]  # those of any configuration
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        rope_theta=1e6,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def save(model: PreTrainedModel, folder: Path) -> None:
    """As a model hub would hold it; token i is written `<i>`."""
    words = {f"<{i}>": i for i in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<1>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>", pad_token="<1>").save_pretrained(
        folder
    )
    model.save_pretrained(folder)


@torch.no_grad()
def renew(model: PreTrainedModel, seed: int) -> None:
    """Other random matrices, where the old ones were."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, 0.05 if model.config.hidden_size < 128 else 0.02, generator=generator)


@torch.no_grad()
def logprobs(model: PreTrainedModel) -> torch.Tensor:
    """Of each token of TEXT but the first, by the trainer's model, on the CPU."""
    text = torch.tensor([TEXT], device=model.device)
    chosen = model(text).logits[0, :-1].float().log_softmax(-1).gather(1, text[0, 1:, None])[:, 0]
    return chosen.cpu()


def served_logprobs(http: HttpClient, address: str) -> torch.Tensor:
    """The same, as a server gives them."""
    body = {"model": "policy", "prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
    answer = http.run(http.json("POST", f"{address}/v1/completions", body, timeout=60))
    rows = answer["choices"][0]["prompt_logprobs"][1:]
    return torch.tensor([row[str(token)]["logprob"] for row, token in zip(rows, TEXT[1:], strict=True)])


def run_config(
    model: Path, workdir: Path, dtype: str, response_tokens: int, engine: dict[str, Any], parts: int = 1
) -> RunConfig:
    """A job that serves `model`, each generator on so many GPUs; only its generators are started."""
    spec = {
        "algorithm": "ppo",
        "steps": 1,
        "model": {"policy": str(model), "dtype": dtype},
        "data": {"train": ["unused.jsonl"], "maxPromptLength": 128, "promptsPerStep": 64},
        "sampling": {"maxNewTokens": response_tokens},
        "reward": {"functions": [{"function": "unused:unused"}]},
        "generator": {"engineArguments": engine, "tensorParallelSize": parts},
    }
    manifest = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "policy"},
        "spec": spec,
    }
    return RunConfig(job="policy", spec=parse(manifest).spec, workdir=str(workdir))


@dataclass
class Server:
    """A vLLM server in a process group of its own, on the GPUs `gpu`, numbered as this process sees them: the generator
    role of `config`, or `command`.

    NCCL refuses two members on one GPU, unless they seem to be on two hosts: one that is `apart` does, so it may share
    a GPU, and its weights come by sockets.
    """

    folder: Path
    name: str
    gpu: str
    config: RunConfig | None = None
    command: list[str] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    apart: bool = False
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    started: float = 0.0
    lives: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def member(self) -> Member:
        uid = f"{self.name}.{self.lives}"
        return Member(role=Role.GENERATOR, name=self.name, uid=uid, address=self.address)

    def launch(self) -> "Server":
        self.port = self.port or free_port()
        command = [*self.command, "--port", str(self.port)]
        gpus = visible(self.gpu)
        variables = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": gpus, "RLHF_TOKEN": self.token}
        variables |= {"RLHF_HOST": "127.0.0.1", "RLHF_PORT": str(self.port)}
        if self.apart:
            variables["NCCL_HOSTID"] = self.name
        if self.config is not None:
            file = self.folder / f"{self.name}.json"
            file.write_text(self.config.model_dump_json(by_alias=True))
            place = Process(Role.GENERATOR, 0, self.port, "127.0.0.1", "127.0.0.1:1")
            end = str(self.folder / f"{self.name}.end")
            variables |= environment(self.config, place, config_file=str(file), termination_log=end)
            command = [sys.executable, "-m", "rlhf_trainer.roles.generator"]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
            )
        self.started = time.monotonic()
        self.lives += 1
        return self

    def wait_ready(self) -> float:
        """Seconds since its start. Raises RuntimeError, with its log's end, where it does not come up."""
        assert self.process is not None
        while time.monotonic() < self.started + READY_SECONDS and self.process.poll() is None:
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"{self.address}/health", timeout=2).close()
                return time.monotonic() - self.started
            time.sleep(0.2)
        self.kill()
        tail = (self.folder / f"{self.name}.log").read_text(errors="replace")[-6000:]
        raise RuntimeError(f"{self.name} is not ready; its log ends:\n{tail}")

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


def visible(gpus: str) -> str:
    """Names of GPUs, which are numbered as this process sees them."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return ",".join(names.split(",")[int(gpu)] for gpu in gpus.split(",")) if names else gpus


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tell(figures: dict[str, Any]) -> None:
    """One line of JSON, at once: what was measured stands even if the rest fails."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded), flush=True)

"""Log-probabilities of a fixed text, as a server gives them and as Transformers computes them."""

from collections.abc import Iterator
from pathlib import Path

import torch
from tests.support.servers.vllm_server import Server
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_api.sections.lora import Lora
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.frozen import freeze_parts, frozen_digest
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.base import Base

TOKEN = "a token for tests"
TEXT = list(range(40, 100))  # token ids


def load(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers, tied ones once."""
    saved = model.state_dict()
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


class Adapted(TrainedModel):
    """A model with an adapter, whole in this process: what a trainer sends, without a trainer."""

    unwrapped = None  # type: ignore[assignment]
    stage = 0

    def __init__(
        self, model: PreTrainedModel, layers: tuple[str, ...] | None = None, *, decomposed: bool = False
    ) -> None:
        self.unwrapped = model
        changes = {"target_modules": layers, "weight_decomposed": decomposed}
        lora = Lora(rank=4, alpha=6.0).model_copy(update=changes)
        self.adapter = Adapter(model, lora, seed=0, base="a base")
        self.train(0)

    def train(self, version: int) -> None:
        """Matrices of this version, the same whenever it is called, in the dtype of the weights."""
        generator = torch.Generator().manual_seed(version)
        for _, matrix in self.trained_tensors():
            torch.nn.init.normal_(matrix, std=0.1, generator=generator)
        self.unwrapped.to(next(tensor.dtype for _, tensor in self.base_tensors()))

    @property
    def base(self) -> Base:
        base = Base.of(self, self.base_tensors)
        assert base is not None
        return base


class PartlyTrained(Adapted):
    """A model of which some parts are frozen; as `Adapted`."""

    adapter = None

    def __init__(self, model: PreTrainedModel, *frozen: str) -> None:
        self.unwrapped = model
        freeze_parts(model, frozen)
        self.frozen = frozen_digest(model)
        self.train(0)


@torch.no_grad()
def model_logprobs(model: PreTrainedModel) -> Tensor:
    """Of each token of TEXT but the first, in nats: [len(TEXT) - 1]."""
    text = torch.tensor([TEXT])
    return model(text).logits[0, :-1].log_softmax(-1).gather(1, text[0, 1:, None])[:, 0]


def served_logprobs(http: HttpClient, server: Server) -> Tensor:
    return torch.tensor(http.run(prompt_logprobs(http, server.address, TEXT)))


async def prompt_logprobs(http: HttpClient, address: str, tokens: list[int]) -> list[float]:
    """Of each token but the first, as the engine reads them."""
    body = {"model": "policy", "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
    answer = await http.json("POST", f"{address}/v1/completions", body, timeout=120)
    rows = answer["choices"][0]["prompt_logprobs"][1:]
    return [row[str(token)]["logprob"] for row, token in zip(rows, tokens[1:], strict=True)]


def serves(http: HttpClient, server: Server, model: PreTrainedModel) -> bool:
    """True if the server's log-probabilities are the model's, within rounding."""
    return (served_logprobs(http, server) - model_logprobs(model)).abs().mean().item() < 1e-5


def status(http: HttpClient, server: Server) -> dict:
    answer = http.run(
        http.json("POST", f"{server.address}/collective_rpc", {"method": "rlhf_status"}, timeout=120)
    )
    (worker,) = answer["results"]
    return worker


def generator(index: int, address: str, uid: str = "1") -> Member:
    """A generator as the host announces it; another `uid` is another life of it."""
    return Member(role=Role.GENERATOR, name=f"generator-{index}", uid=uid, address=address)

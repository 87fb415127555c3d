"""Tasks with a tiny real model, in this process as the only rank: reward and reference are functions."""

import copy
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from tests.support.sources import metrics_page
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.graph.specs import ONLINE, spec_of
from tests.unit.trainer.replay.ppo_worker import Snapshot, engine
from torch import Tensor
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, LlamaForTokenClassification

from rlhf_api.dataset.rows import PairRow, PromptRow, Row
from rlhf_api.graph import REFERENCE_COLUMNS
from rlhf_api.rules.own_algorithm import resolve
from rlhf_api.sections.lora import Adapters
from rlhf_trainer.checkpoint.rng import restore_generators
from rlhf_trainer.graph.learner import Learner
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.average import MovingAverage
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ops import OpContext
from rlhf_trainer.ranks.context import TrainerContext
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.from_trainer import TrainerRollouts
from rlhf_trainer.rollout.remote import Remote
from rlhf_trainer.rollout.rollouts import Rollouts
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.training.offline import OfflineTask
from rlhf_trainer.training.online import OnlineTask
from rlhf_trainer.updates.updates import PretrainingText

RANKS = Ranks(0, 1, torch.device("cpu"))
ROWS = [PromptRow(prompt=f"p{i}") for i in range(10)]
PAIRS = [PairRow(prompt=f"p{i}", pos_answers=["good"], neg_answers=["evil"]) for i in range(10)]
TOY = (
    *("spec.trainer.deepspeed={}", "spec.steps=40", "spec.model.dtype=float32"),
    "spec.optimizer={learningRate: 0.01}",
)
SAMPLED = ("spec.sampling={maxNewTokens: 4, responsesPerPrompt: 4}", "spec.generator.sharedWithTrainer=true")
Call = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]


def low_tokens(sequences: Sequences, _rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """A toy reward: the share of a response's tokens below 128. Half of them are."""
    shares = []
    for i, prompt_length in enumerate(sequences.prompt_lengths.tolist()):
        shares.append((sequences.row(i)[prompt_length:] < 128).float().mean())
    return torch.stack(shares)


class Job:
    """A job of an algorithm from the seeds on; `told` is what its host hears."""

    def __init__(
        self,
        algorithm: str,
        settings: str = "",
        *overrides: str,
        score: Call = low_tokens,
        refer: Call | None = None,
        rows: Sequence[Row] | None = None,
        held_out: Mapping[str, Sequence[Row]] = MappingProxyType({}),
        rollouts: Callable[[TrainerContext, Mapping[str, TrainedModel]], Rollouts] | None = None,
        text: Sequence[Row] = (),
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`rollouts`: those of the trainer itself unless given; `more`: further fields of `Remote`."""
        given = (*TOY, *(SAMPLED if algorithm in ONLINE else ()))
        given += ("spec.optimizer.criticLearningRate=0.01",) if algorithm == "ppo" else ()
        self.spec = spec_of(algorithm, settings, *given, *overrides)
        self.told: list[Any] = []
        services: Any = SimpleNamespace(
            control=SimpleNamespace(report=lambda **changes: self.told.append(changes))
        )
        self.ctx = TrainerContext(
            "job", self.spec, Path(), RANKS, byte_tokenizer(), services, threading.Event(), {}
        )
        resolved = resolve(self.spec)
        graph = resolved.graph
        kinds = {
            "causal": (LlamaForCausalLM, 2),
            "value": (LlamaForTokenClassification, 1),
            "score": (LlamaForSequenceClassification, 1),
            "token_score": (LlamaForTokenClassification, 1),
        }
        lora = self.spec.model.lora or Adapters()
        self.models = {m.name: engine(*kinds[m.head], 0.01, lora.of(m.field)) for m in graph.trained}
        self.initial = copy.deepcopy(next(iter(self.models.values())).unwrapped).eval()
        self.op_ctx = OpContext(self.spec, resolved.settings)
        models = {used: self.models[used.name] for used in graph.trained}
        averages = {used: MovingAverage(models[used], d) for used, d in graph.averages.items()}
        learner = Learner(graph, models, self.op_ctx, averages)
        nodes = {"score": score, **dict.fromkeys(REFERENCE_COLUMNS, refer or self.reference)}
        remote = Remote(nodes, judges={"evaluation": score}, **more)
        torch.manual_seed(0)
        self.lines: list[dict[str, float]] = []
        self.task: Any
        if graph.generates:
            mixed = PretrainingText(text, self.ctx) if self.spec.pretraining else None
            self.rollouts = (
                rollouts(self.ctx, self.models)
                if rollouts
                else TrainerRollouts(self.ctx, self.models["policy"])
            )
            self.task = OnlineTask(
                self.ctx, learner, remote, rows or ROWS, held_out, rollouts=self.rollouts, text=mixed
            )
        else:
            self.task = OfflineTask(self.ctx, learner, remote, rows or PAIRS, held_out)

    def reference(self, sequences: Sequences, _rows: object) -> Tensor:
        """Log-probabilities of the policy as it was at the start."""
        sizes = sequences.response_lengths
        return infer(Forward(self.initial, 256, 257), sequences, ResponseLogprobs(), sizes)

    def steps(self, first: int, last: int) -> "Job":
        for step in range(first, last):
            self.task.publish(step)
            metrics = self.task.collect(step)
            self.lines.append(metrics | self.task.train(step))
        metrics_page.check(self.lines)
        return self

    def snapshot(self, step: int) -> Snapshot:
        return Snapshot(self.task, RANKS, step)

    def restore(self, snapshot: Snapshot) -> "Job":
        self.task.restore(snapshot)
        restore_generators(RANKS, snapshot.generators)
        return self

    def weights(self) -> str:
        digest = hashlib.sha256()
        for model in self.models.values():
            for _, tensor in model.named_tensors():
                digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def ledger(self) -> Any:
        """The last one that the host heard of."""
        return [report["ledger"] for report in self.told if "ledger" in report][-1]

    def positions(self, name: str) -> list[int]:
        """Of the ledger: `issued`, `returned`, `trained` or `filtered` prompts."""
        return [p for low, high in self.task.state()["ledger"][name] for p in range(low, high)]


def resumed_is_whole(make: Callable[[], Job], stop: int, end: int) -> Job:
    """A run of `end` steps; a run that another process took over after `stop` of them has to equal it bit for bit."""
    whole = make().steps(0, end)
    cut = make().steps(0, stop).snapshot(stop)
    after = make().steps(0, 1)  # whatever it was before, it is the snapshot's then
    after.lines.clear()
    after.restore(cut).steps(stop, end)
    assert after.weights() == whole.weights()
    assert after.task.state() == whole.task.state()
    blobs = [{name: make() for name, make in job.task.blobs().items()} for job in (after, whole)]
    assert blobs[0] == blobs[1]
    untimed = [{k: v for k, v in line.items() if "seconds" not in k} for line in whole.lines]
    assert [{k: v for k, v in line.items() if "seconds" not in k} for line in after.lines] == untimed[stop:]
    return whole

"""PPO with real engines: whole runs, and runs that go on from a checkpoint in the middle.

Each rank: `ppo_worker.py OUT`, with torchrun's environment. Writes figures, ledgers and digests of the weights of each
case to OUT/<rank>.json; several ranks make whole runs of the cases in SPREAD alone.
"""

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.support.tiny.models import byte_tokenizer, small_llama
from tests.unit.api.manifests import job
from torch import distributed
from transformers import LlamaForCausalLM, LlamaForTokenClassification

from rlhf_api.algorithms import settings_of
from rlhf_api.dataset.rows import PromptRow
from rlhf_api.graph import CRITIC, POLICY
from rlhf_api.sections.lora import Lora
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.replay import EPISODES
from rlhf_api.sections.roles import Trainer
from rlhf_store.manifest import Manifest
from rlhf_trainer.checkpoint.rng import restore_generators, save_generators
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.graph.learner import Learner
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ops import OpContext
from rlhf_trainer.ranks.context import TrainerContext
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.replay.table import decode
from rlhf_trainer.rollout.from_generators import GeneratorRollouts
from rlhf_trainer.rollout.from_trainer import TrainerRollouts
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.remote import Remote
from rlhf_trainer.tensors.records import Prompt, Rollout, Sequences
from rlhf_trainer.training.online import OnlineTask

ROWS = [PromptRow(prompt=f"prompt {i} of the data") for i in range(10)]
SMALL = (
    *("spec.data.promptsPerStep=4", "spec.ppo.minibatchSize=4", "spec.ppo.epochs=2", "spec.steps=9"),
    *("spec.sampling={maxNewTokens: 6, responsesPerPrompt: 2}", "spec.trainer.deepspeed={}"),
    *("spec.model.dtype=float32", "spec.optimizer={learningRate: 0.001, criticLearningRate: 0.01}"),
)
SHARED = "spec.generator.sharedWithTrainer=true"
CASES: dict[str, tuple[str, ...]] = {
    "plain": (SHARED,),
    "uniform": (SHARED, "spec.replay={maxReplayEpisode: 2}"),
    "prioritized": (
        SHARED,
        "spec.replay={maxReplayEpisode: -1, replaySampleFn: prioritized, samplesPerStep: 3}",
    ),
    "dynamic": ("spec.replay={streamDataLoaderType: dynamic, maxReplayEpisode: 1, samplesPerStep: 2}",),
}
ONE_UPDATE = (SHARED, "spec.ppo={epochs: 1, minibatchSize: 8, klIn: loss, klEstimator: k3}")
"""A step of it has no log-probabilities before its update."""
SPREAD = ("uniform", "dynamic")
STEPS, STOP = 5, 2


def scores(sequences: Sequences, _rows: Any) -> torch.Tensor:
    """In place of the reward role: numbers that depend on the response alone."""
    ends = sequences.tokens.double()[sequences.lengths.cumsum(0) - 1]
    return (ends.remainder(7) / 7).float()


def reference_logprobs(sequences: Sequences, _rows: Any) -> torch.Tensor:
    """In place of the reference."""
    index = sequences.response_index(torch.arange(len(sequences)))
    return -(sequences.tokens.double()[index].remainder(5) + 1).float()


class Weights:
    """In place of the generators' weights: the version that was published last."""

    version = -1

    def publish(self, version: int, _committing: object) -> None:
        self.version = version

    def figures(self) -> dict[str, float]:
        return {}

    def yield_gpus(self) -> None:
        """No generator shares one."""

    def changed(self) -> str:
        return ""


class Generators(GeneratorRollouts):
    """In place of the generators: answers of the model as it is when they are asked for, in batches out of order."""

    def __init__(self, ctx: TrainerContext, engine: TrainedModel, refuses: str = "") -> None:
        self.fleet: Any = SimpleNamespace(start=None, fresh=None, continued=0)
        served: Any = Weights()
        served.drop = None
        super().__init__(ctx, self.fleet, served)
        self._engine, self._refuses = engine, refuses

    def stream(self, prompts: list[Prompt], size: int | None, **_more: Any) -> Iterator[Responses]:
        accepted = [prompt for prompt in prompts if prompt.id != self._refuses]
        request, tokenizer = SamplingRequest(self._ctx.spec.sampling), self._ctx.tokenizer
        rollouts = generate_shared(
            self._engine, self._ctx.ranks, tokenizer, accepted, request, self.weights.version, self._ctx.stop
        )
        by_prompt: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            by_prompt.setdefault(rollout.prompt.id, []).append(rollout)
        came = list(by_prompt.values())[::-1]
        if size is not None:
            yield Responses([r for rs in came[:size] for r in rs])
        refused = {self._refuses: "HTTP 400: too long"} if len(accepted) < len(prompts) else {}
        yield Responses([r for rs in came[size or 0 :] for r in rs], [accepted[0].id], refused)


def engine(kind: type, labels: int, rate: float, lora: Lora | None = None) -> TrainedModel:
    torch.manual_seed(3)
    model = small_llama(kind, 1, num_labels=labels).float()
    return TrainedModel(
        model,
        Optimizer().model_copy(update={"learning_rate": rate}),
        Trainer(),
        adapter=Adapter(model, lora, 0, "base") if lora else None,
        deepspeed={"zero_optimization": {"stage": 0}},
        micro_batch_tokens=256,
        pad_token_id=byte_tokenizer().pad_token_id,
    )


def stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it comes back from a store, which takes no tuples."""
    manifest = Manifest(step=0, epoch=0, time="", state=dict(state), groups={}, blobs={})
    read: dict[str, Any] = json.loads(manifest.model_dump_json())["state"]
    return read


class Snapshot:
    """A checkpoint of a task in memory: its state through JSON, its tensors copied."""

    def __init__(self, task: OnlineTask, ranks: Ranks, step: int) -> None:
        self.step = step
        self.state = stored(task.state())
        self.groups = {
            group: {name: tensor.clone() for name, tensor in tensors}
            for group, tensors in task.groups().items()
        }
        self._blobs = {name: make() for name, make in task.blobs().items()}
        self.blobs = tuple(sorted(self._blobs))
        self.generators = save_generators(ranks)

    def blob(self, name: str) -> bytes:
        return self._blobs[name]

    def tensor(self, group: str, name: str) -> torch.Tensor:
        return self.groups[group][name]


class Job:
    """One run, that can be put back to a cut."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self.ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), torch.device("cpu"))
        self.told: list[Any] = []
        control = SimpleNamespace(report=lambda **changes: self.told.append(changes))
        self.spec = job(*SMALL, *settings).spec
        run = TrainerContext(
            "job",
            self.spec,
            Path(),
            self.ranks,
            byte_tokenizer(),
            SimpleNamespace(control=control),
            threading.Event(),
            {},
        )
        policy = engine(LlamaForCausalLM, 2, 0.001)
        dynamic = self.spec.replay.dynamic
        remote = {"score": scores, "reference_logprobs": reference_logprobs} if self.ranks.first else {}
        models = {POLICY: policy, CRITIC: engine(LlamaForTokenClassification, 1, 0.01)}
        self.task = OnlineTask(
            run,
            Learner(self.spec.graph, models, OpContext(self.spec, settings_of(self.spec))),
            Remote(remote),
            ROWS,
            {},
            rollouts=Generators(run, policy, refuses="0/3") if dynamic else TrainerRollouts(run, policy),
        )
        self.policy, self.lines = policy, list[dict[str, float]]()

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.task.publish(step)
            figures = self.task.collect(step)
            self.lines.append(figures | self.task.train(step))

    def results(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for _, tensor in self.policy.named_tensors():
            digest.update(tensor.numpy().tobytes())
        ledgers = [report["ledger"].model_dump() for report in self.told if "ledger" in report]
        blobs = {name: hashlib.sha256(make()).hexdigest() for name, make in self.task.blobs().items()}
        return {
            "weights": digest.hexdigest(), "lines": self.lines, "ledgers": ledgers,
            "state": self.task.state(), "blobs": blobs,
        }  # fmt: skip


def whole(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    run = Job(CASES[name])
    torch.manual_seed(0)
    run.steps(0, STEPS)
    return run.results()


def resumed(name: str, *, pending: bool) -> dict[str, Any]:
    """Stopped after STOP steps, where `pending` with an episode that is collected; another process would go on."""
    first = Job(CASES[name])
    torch.manual_seed(0)
    first.steps(0, STOP)
    if pending:
        first.task.publish(STOP)
        first.task.collect(STOP)
    cut = Snapshot(first.task, first.ranks, STOP)
    second = Job(CASES[name])
    second.steps(0, 1)  # whatever it was before, it is the cut's then
    second.lines.clear()
    second.task.restore(cut)
    restore_generators(second.ranks, cut.generators)
    second.steps(STOP, STEPS)
    return second.results()


def changed() -> dict[str, Any]:
    """Steps of the case `uniform` from a checkpoint of a job of one update a step, with a pending episode: the share of
    what each replayed, and the columns of what it trained on."""
    first = Job(ONE_UPDATE)
    torch.manual_seed(0)
    first.steps(0, STOP)
    first.task.publish(STOP)
    first.task.collect(STOP)
    second, columns = Job(CASES["uniform"]), list[list[str]]()
    second.task.restore(Snapshot(first.task, first.ranks, STOP))
    for step in range(STOP, STEPS):
        second.steps(step, step + 1)
        blobs = second.task.blobs()
        columns.append(sorted(decode(blobs[max(filter(is_episode, blobs))]()).columns.tokens))
    return {"shares": [line["replay_share"] for line in second.lines], "columns": columns}


def is_episode(name: str) -> bool:
    return name.startswith(EPISODES)


def main(out: Path) -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    one = distributed.get_world_size() == 1
    results: dict[str, Any] = {}
    for name in CASES if one else SPREAD:
        results[name] = {"whole": whole(name)}
        if one:
            results[name] |= {way: resumed(name, pending=way == "pending") for way in ("between", "pending")}
    if one:
        results["changed"] = changed()
    (out / f"{distributed.get_rank()}.json").write_text(json.dumps(results))
    distributed.barrier()
    os._exit(0)  # as the trainer role ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))

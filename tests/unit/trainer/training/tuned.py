"""Trained models of a manifest that start from files, in this process as the only rank: no host, no rewards."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tests.support.tiny.models import CHATML, chat_tokenizer
from tests.unit.trainer.graph.specs import spec_of
from tests.unit.trainer.training.running import Job

from rlhf_api.contract.run import RunConfig
from rlhf_api.graph import POLICY
from rlhf_api.rules.own_algorithm import resolve
from rlhf_trainer.data.dataset import open_datasets
from rlhf_trainer.graph.learner import Learner
from rlhf_trainer.models.pretrained.create import create_policy
from rlhf_trainer.models.pretrained.job_models import load_job_tokenizer
from rlhf_trainer.models.pretrained.vision import load_reader
from rlhf_trainer.ops import OpContext
from rlhf_trainer.ranks.context import TrainerContext
from rlhf_trainer.rollout.from_trainer import TrainerRollouts
from rlhf_trainer.rollout.remote import Remote
from rlhf_trainer.training.assembly import trained_model
from rlhf_trainer.training.offline import OfflineTask
from rlhf_trainer.training.online import OnlineTask

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}
TALK = {"hi": "yo", "2": "3", "film": "fun", "a": "b"}
ROWS = {
    "sft": [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in TALK.items()
    ],
    "reward": [{"prompt": q, "pos_answers": [a], "neg_answers": ["no"]} for q, a in TALK.items()],
}


def base_model(folder: Path) -> Path:
    """A base model: it ends texts with <eos>, and has the tokens of ChatML without its template."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    create_policy("llama", SHAPE, tokenizer, 0).save_pretrained(folder)
    return folder


def nobody(*_: object) -> torch.Tensor:
    raise AssertionError("nothing is evaluated")


def fine_tuned(
    folder: Path,
    base: Path,
    steps: int,
    *overrides: str,
    algorithm: str = "sft",
    nodes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[TrainerContext, Any]:
    """A model tuned for some steps on `TALK`, with ChatML as its template; its work directory is `folder / "run"`.
    `nodes`: what stands for other roles, where the algorithm samples."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS.get(algorithm, ())))
    spec = spec_of(
        algorithm,
        "",
        *("spec.trainer.deepspeed={}", f"spec.steps={steps}", "spec.optimizer={learningRate: 0.005}"),
        f"spec.model={{dtype: float32, policy: {base}}}",
        f"spec.data={{train: [{folder / 'rows.jsonl'}], promptsPerStep: 4, maxPromptLength: 64, "
        f"chatTemplate: {json.dumps(CHATML)}}}",
        *(["spec.data.maxResponseLength=20"] if algorithm in ROWS else []),
        *overrides,
    )
    config = RunConfig(job="talk", spec=spec, workdir=str(folder / "run"))
    ctx = replace(Job("sft").ctx, job="talk", spec=spec, workdir=folder / "run")
    ctx = replace(ctx, tokenizer=load_job_tokenizer(config))
    resolved = resolve(spec)
    models = {used: trained_model(ctx, config, used) for used in resolved.graph.trained}
    learner = Learner(resolved.graph, models, OpContext(spec, resolved.settings), {})
    rows, reader = open_datasets(spec).rows, load_reader(config)
    remote = Remote(nodes, judges={"evaluation": nobody})
    torch.manual_seed(0)
    task: Any
    if resolved.graph.generates:
        rollouts = TrainerRollouts(ctx, learner.models[POLICY])
        task = OnlineTask(ctx, learner, remote, rows, {}, rollouts=rollouts, reader=reader)
    else:
        task = OfflineTask(ctx, learner, remote, rows, {}, reader)
    train(task, range(steps))
    return ctx, task


def train(task: Any, steps: Iterable[int]) -> None:
    """The task's next steps."""
    for step in steps:
        task.publish(step)
        task.collect(step)
        task.train(step)

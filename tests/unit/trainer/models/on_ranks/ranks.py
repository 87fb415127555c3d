"""Each of several ranks: the cases of `CASES`, with what came of it written by rank 0.   ranks.py OUT [STATES]

Per case OUT/<case>.json (statistics and checks), .weights (after the last update), .state (before the last
update), and OUT/<case>/ (the saved model). With STATES, an OUT of another number of ranks, the last update is
made once more from the state found there: .resumed.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers import Qwen2ForTokenClassification as Qwen2Critic

from rlhf_api.sections.lora import Lora
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.engines.vllm.weights.held import HeldBase
from rlhf_trainer.export.model_files import save_model
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.forward import inference
from rlhf_trainer.models.frozen import freeze_parts
from rlhf_trainer.models.pretrained.create import create_tokenizer
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.weights.base import Base

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "num_labels": 1,
}
ADAM = Optimizer().model_copy(
    update={
        "learning_rate": 0.0,
        "betas": (0.9, 0.99),
        "epsilon": 1e-4,
        "weight_decay": 0.1,
        "gradient_clip": 0.5,
    }
)
UPDATES = 3

# name: (ZeRO stage, bfloat16, kind of model); the critic's head has a bias of one element, which no number of
# ranks divides.
CASES = {
    "zero0": (0, False, "untied"),
    "zero1": (1, False, "tied"),
    "zero2": (2, False, "untied"),
    "zero3": (3, False, "tied"),
    "zero3-critic": (3, False, "critic"),
    "zero2-round-robin": (2, False, "untied"),
    "bf16-zero1": (1, True, "tied"),
    "bf16-zero1-sent-in-float32": (1, True, "untied"),
    "bf16-zero2": (2, True, "critic"),
    "bf16-zero3": (3, True, "tied"),
    "bf16-zero3-secondary": (3, True, "untied"),
    "lora-zero0": (0, False, "tied"),
    "lora-zero1": (1, False, "untied"),
    "lora-zero2": (2, False, "critic"),
    "lora-zero3": (3, False, "tied"),
    "lora-bf16-zero2": (2, True, "untied"),
    "lora-bf16-zero3": (3, True, "critic"),
    "dora-lora-zero1": (1, False, "untied"),
    "dora-lora-zero2": (2, False, "critic"),
    "dora-lora-zero3": (3, False, "tied"),
    "dora-lora-bf16-zero2": (2, True, "untied"),
    "dora-lora-bf16-zero3": (3, True, "tied"),
    "sequence-zero1": (1, False, "one key head"),
    "sequence-zero3": (3, False, "critic"),
    "sequence-lora-zero2": (2, False, "tied"),
    "experts-zero2": (2, False, "experts"),
    "experts-zero3": (3, False, "experts"),
    "sequence-experts-zero1": (1, False, "experts"),
    "replayed-zero2": (2, False, "replayed experts"),
    "replayed-zero3": (3, False, "replayed experts"),
    "sequence-replayed-zero1": (1, False, "replayed experts"),
    "lora-experts-zero2": (2, False, "experts"),
    "lora-experts-zero3": (3, False, "experts"),
    "frozen-zero2": (2, False, "untied"),
    "frozen-zero3": (3, False, "tied"),
    "frozen-bf16-zero1": (1, True, "untied"),
    "muon-zero0": (0, False, "untied"),
    "muon-critic-zero0": (0, False, "critic"),
    "muon-bf16-zero1": (1, True, "tied"),
    "8bit-zero0": (0, False, "critic"),
    "8bit-zero2": (2, False, "untied"),
    "8bit-lora-zero3": (3, False, "critic"),
    "8bit-bf16-zero1": (1, True, "tied"),
}
BALANCE = 0.02
"""Coefficient of the mixture's balance."""
PROMPT = [5, 6, 7]
"""What a model continues, greedily."""
LORA = Lora(rank=4, alpha=6.0)
FROZEN = ("embed_tokens", "layers.0", "layers.*.mlp.up_proj")
"""Parts of the models of the cases of this name."""
DORA = LORA.model_copy(update={"weight_decomposed": True})
LORA_OF_EXPERTS = LORA.model_copy(
    update={"target_modules": ("q_proj", "experts.down_proj", "experts.gate_up_proj")}
)


def cases(world: int) -> list[str]:
    """With one rank, bfloat16 is checked where its gradient is not reduced."""
    return [
        case for case, (_, bfloat16, _) in CASES.items() if world > 1 or not bfloat16 or case == "bf16-zero1"
    ]


def make(kind: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    if kind == "untied":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    if kind == "one key head":
        return LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": 1}))
    if kind.endswith("experts"):
        own = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **own, norm_topk_prob=True))
    if kind == "tied":
        return Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True))
    return Qwen2Critic(Qwen2Config(**SHAPE, classifier_dropout=0.0))


def reader(kind: str):
    return response_values if kind == "critic" else ResponseLogprobs()


def batch(update: int, kind: str = "") -> tuple[Sequences, Tensor]:
    """Sequences, their number odd and their lengths uneven, with a weight for every answer token; of replayed experts
    with random choices."""
    generator = torch.Generator().manual_seed(update)
    lengths = torch.randint(1, 9, (7 + 2 * update, 2), generator=generator).tolist()
    pairs = [[torch.randint(300, (n,), generator=generator).tolist() for n in both] for both in lengths]
    sequences = Sequences.pack(pairs)
    if kind == "replayed experts":
        scores = torch.rand(len(sequences.tokens), 2, 4, generator=generator)
        sequences = replace(sequences, routing=scores.topk(2).indices.to(torch.int16))
    return sequences, torch.randn(int(sequences.response_lengths.sum()), generator=generator)


def loss(weights: Tensor):
    def of(output: Tensor, micro: MicroBatch):
        part = (output * weights[micro.response_index]).sum() / len(weights)
        largest = output.abs().max() if output.numel() else output.sum()
        named = {"part": part, "tokens": torch.tensor(len(output)), "output_max": largest}
        return part + (output**2).sum() / 40, named

    return of


def rate(update: int) -> float:
    return 0.01 / (update + 1)


def step(engine: TrainedModel, kind: str, update: int) -> dict[str, float]:
    sequences, weights = batch(update, kind)
    return engine.update(sequences, reader(kind), loss(weights), rate(update))


def engine_of(case: str, seed: int) -> TrainedModel:
    stage, bfloat16, kind = CASES[case]
    settings = {"zero_optimization": {"stage": stage, "reduce_bucket_size": 5_000}}
    if bfloat16:
        settings["bf16"] = {"enabled": True}
    if case.endswith("round-robin"):
        settings["zero_optimization"]["round_robin_gradients"] = True
    if case.endswith("secondary"):
        settings["zero_optimization"]["zero_hpz_partition_size"] = 2
    if case.endswith("float32"):
        settings["communication_data_type"] = "fp32"
    efficient = {"attention": "packed", "gradient_checkpointing": "full"} if stage in (1, 3) else {}
    if case.startswith("sequence"):  # all ranks share each micro-batch
        efficient["sequence_parallel_size"] = distributed.get_world_size()
    lora = "lora" in case
    same_base = lora or "frozen" in case  # from which alone a state of some weights goes on
    model = make(kind, 0 if same_base else seed)
    if "frozen" in case:
        freeze_parts(model, FROZEN)
    settings_of_kind = LORA_OF_EXPERTS if kind == "experts" else DORA if "dora" in case else LORA
    adapter = Adapter(model, settings_of_kind, seed, "base") if lora else None
    section = Trainer().model_copy(update=efficient)
    if kind.endswith("experts"):  # which on a CPU differ in rounding with what is packed beside them
        inference.packing_fault = lambda *_: ""
    own = {"matrices": "muon"} if "muon" in case else {"moments": "8bit"} if "8bit" in case else {}
    return TrainedModel(
        model,
        ADAM.model_copy(update=own),
        section,
        deepspeed=settings,
        micro_batch_tokens=40,
        pad_token_id=0,
        adapter=adapter,
        balance=BALANCE if kind.endswith("experts") else 0.0,
    )


def copied(items) -> dict[str, Tensor]:
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in items}


def sent_weights(engine: TrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Sends a base and what is trained beside it as to a generator; yields the weights that it makes of them."""
    tensors, came = copied(engine.base_tensors()), copied(engine.version_tensors())
    base, held = Base.of(engine, lambda: iter(tensors.items())), HeldBase("a base", list(tensors.items()))
    assert base is not None
    return held.with_trained(list(came.items()), base.scale, base.transposed).merged()


def watch_gradients(engine) -> list[bool]:
    """For each step of DeepSpeed's BF16_Optimizer: True if bfloat16 can represent each element of the gradient that it
    accumulated, before clipping."""
    representable, step = [], engine.step

    def looking() -> None:
        flat, _ = engine.optimizer.get_grads_for_reduction()
        representable.append(all(torch.equal(gradient, gradient.bfloat16().float()) for gradient in flat))
        step()

    engine.step = looking
    return representable


def bytes_of_moments(engine: TrainedModel) -> int:
    """On all ranks."""
    adam = getattr(engine.deepspeed.optimizer, "optimizer", engine.deepspeed.optimizer)
    moments = [state[name] for state in adam.state.values() for name in ("exp_avg", "exp_avg_sq")]
    total = torch.tensor(sum(each.codes.nbytes + each.scales.nbytes for each in moments))
    distributed.all_reduce(total)
    return int(total)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def run(case: str, out: Path, states: Path | None) -> None:
    _, _, kind = CASES[case]
    engine = engine_of(case, seed=0)
    rounded = watch_gradients(engine.deepspeed) if case.startswith("bf16-zero1") else []
    statistics = [step(engine, kind, update) for update in range(UPDATES - 1)]
    state = copied(training_state(engine))
    statistics.append(step(engine, kind, UPDATES - 1))
    weights, final = copied(engine.named_tensors()), copied(training_state(engine))

    sent = copied(sent_weights(engine)) if engine.adapter or engine.frozen else weights

    resumed = engine_of(case, seed=1)
    load_training_state(resumed, state.__getitem__)
    back = copied(training_state(resumed))
    again = step(resumed, kind, UPDATES - 1)
    report = {
        "statistics": statistics,
        "gradients_in_bfloat16": rounded,
        "sent_is_merged": sent.keys() == weights.keys()
        and same(weights, {name: sent[name] for name in weights}),
        "loaded_state_is_the_saved": same(back, state),
        "resumed_is_uninterrupted": again == statistics[-1]
        and same(copied(training_state(resumed)), final)
        and same(copied(resumed.named_tensors()), weights),
    }
    if "8bit" in case:
        report["bytes_of_moments"] = bytes_of_moments(engine)
    sequences, _ = batch(0)
    before = engine.infer(sequences, reader(kind), sequences.response_lengths)
    if kind != "critic":
        with engine.gathered() as model, torch.no_grad():
            prompt = torch.tensor([PROMPT])
            report["generated"] = model.generate(
                prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None
            )[0].tolist()
    after = engine.infer(sequences, reader(kind), sequences.response_lengths)
    report["inferred"] = before.tolist()
    if case.startswith("replayed"):
        values, routing = engine.infer_routed(sequences, reader(kind), sequences.response_lengths)
        report["routing"] = routing.tolist() if torch.equal(values, before) else "other values"
    report["gathering_changes_nothing"] = torch.equal(before, after)
    # Every rank must have it, not rank 0 alone.
    both = [torch.empty_like(before) for _ in range(engine.world_size)]
    distributed.all_gather(both, before)
    report["all_ranks_infer_the_same"] = all(torch.equal(before, other) for other in both)
    save_model(engine, create_tokenizer(["some text"], 300), out / case)
    if states:
        load_training_state(resumed, load_file(states / f"{case}.state").__getitem__)
        step(resumed, kind, UPDATES - 1)
    elsewhere = copied(resumed.named_tensors())
    if engine.rank == 0:
        save_file(weights, out / f"{case}.weights")
        save_file(state, out / f"{case}.state")
        save_file(elsewhere, out / f"{case}.resumed")
        (out / f"{case}.json").write_text(json.dumps(report))


def main(out: Path, states: Path | None = None) -> None:
    distributed.init_process_group("gloo")
    for case in cases(distributed.get_world_size()):
        gc.freeze()  # DeepSpeed collects garbage over and over while it starts: spare it all that was there before
        run(case, out, states)
    distributed.barrier()
    # As the trainer role ends: gloo's threads, torn down by the interpreter, sometimes abort the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

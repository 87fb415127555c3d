"""Any ZeRO stage on one or two ranks trains as a plain loop does, and stops and goes on without a trace."""

import json
import math
from functools import cache
from operator import ne
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.models.choosing import choosing
from tests.unit.trainer.models.on_ranks import ranks
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from rlhf_trainer.tensors.batches import MicroBatch

WORLDS = (2, 1)
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXACT = [case for case, (_, bfloat16, _) in ranks.CASES.items() if not bfloat16]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[int, Path]:
    """OUT of `ranks.py` for each number of ranks; one rank also goes on from the state of two."""
    folders: dict[int, Path] = {}
    for world in WORLDS:
        out = tmp_path_factory.mktemp(f"ranks{world}")
        outputs = run_ranks(world, ranks.__name__, str(out), *map(str, folders.values()), folder=out)
        assert outputs == [""] * world  # standard output belongs to the roles
        folders[world] = out
    return folders


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[list[dict], dict]]:
    """Statistics of every update and the final weights by a plain loop, one row at a time, without engine."""
    return {
        case: plain_loop(kind, "lora" in case, "frozen" in case, "dora" in case, "muon" in case)
        for case, (_, _, kind) in ranks.CASES.items()
    }


def is_trained(name: str) -> bool:
    """True if `ranks.FROZEN` leaves a parameter out, by the names of the weights that it means."""
    return name.startswith(("model.layers.1.", "model.norm.", "lm_head.")) and ".up_proj." not in name


def is_rounded(case: str) -> bool:
    """True where optimizers compute alike but for rounding: Muon's products in bfloat16, moments in 8 bits."""
    return "muon" in case or "8bit" in case


@cache
def plain_loop(kind: str, lora: bool, frozen: bool, dora: bool, muon: bool) -> tuple[list[dict], dict]:
    """With PEFT's own wrapper of the whole model where it has an adapter."""
    model = ranks.make(kind)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or is_trained(name))
    if lora:
        torch.manual_seed(0)
        heads = {"task_type": "TOKEN_CLS", "modules_to_save": ["score"]} if kind == "critic" else {}
        layers = {"target_modules": LAYERS, "use_dora": dora}
        if kind == "experts":
            experts = ["experts.gate_up_proj", "experts.down_proj"]
            layers = {"target_modules": ["q_proj"], "target_parameters": experts}
        model = get_peft_model(
            model, LoraConfig(r=4, lora_alpha=6, init_lora_weights=True, **layers, **heads)
        )
    groups = [
        {"params": [p for p in model.parameters() if p.requires_grad and p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.requires_grad and p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if muon:
        hidden = {id(p) for name, p in model.named_parameters() if "_proj." in name and p.ndim == 2}
        matrices = [p for group in groups for p in group["params"] if id(p) in hidden]
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in hidden]
        own = {"weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
        optimizers.append(torch.optim.Muon(matrices, **own))
    optimizers.append(torch.optim.AdamW(groups, betas=ranks.ADAM.betas, eps=ranks.ADAM.epsilon))
    statistics = []
    for update in range(ranks.UPDATES):
        sequences, weights = ranks.batch(update, kind)
        for group in (group for each in optimizers for group in each.param_groups):
            group["lr"] = ranks.rate(update)
        total, part, largest = torch.zeros(()), torch.zeros(()), torch.zeros(())
        balance, loads, replaced = torch.zeros(()), torch.zeros(2, 4), torch.zeros(())
        for row in range(len(sequences)):
            micro = MicroBatch.build(sequences, [row], 0)
            routed = {"output_router_logits": True} if kind.endswith("experts") else {}
            with choosing(micro.routing):
                answer = model(input_ids=micro.input_ids, **routed)
            output = ranks.reader(kind)(answer.logits, micro)
            for layer, logits in enumerate(answer.router_logits if routed else ()):
                with choosing(None if micro.routing is None else micro.routing[:, layer:]):
                    own = load_balancing_loss_func((logits,), 4, 2, micro.attention_mask)
                balance = balance + own * len(logits) / (2 * len(sequences.tokens))
                chosen = logits.topk(2).indices
                if micro.routing is not None:
                    replaced += sum(map(ne, sets_of(chosen), sets_of(micro.routing[:, layer])))
                    chosen = micro.routing[:, layer]
                loads[layer] += torch.bincount(chosen.flatten(), minlength=4)
            value, parts = ranks.loss(weights)(output, micro)
            total, part = total + value, part + parts["part"]
            largest = torch.maximum(largest, parts["output_max"])
        total = total + ranks.BALANCE * balance
        model.zero_grad()
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), ranks.ADAM.gradient_clip)
        for each in optimizers:
            each.step()
        statistics.append(
            {
                "loss": total,
                "part": part,
                "tokens": torch.tensor(len(weights)),
                "grad_norm": norm,
                "output_max": largest,
                **(routing(balance, loads / loads.sum(1, keepdim=True)) if kind.endswith("experts") else {}),
                **({"experts_replaced_share": replaced / loads.sum() * 2} if "replayed" in kind else {}),
            }
        )
    whole = model.merge_and_unload() if lora else model
    return [{k: v.item() for k, v in s.items()} for s in statistics], whole.state_dict()


def sets_of(chosen: torch.Tensor) -> list[set[int]]:
    """The experts of each token."""
    return [set(row) for row in chosen.tolist()]


def routing(balance: torch.Tensor, shares: torch.Tensor) -> dict[str, torch.Tensor]:
    entropies = [torch.distributions.Categorical(probs=each).entropy() for each in shares]
    return {
        "balance_loss": balance,
        "expert_share_max": shares.max(),
        "expert_entropy": sum(entropies) / len(entropies) / math.log(4),
        "experts_unused_share": (shares == 0).float().mean(),
    }


def report(runs: dict[int, Path], world: int, case: str) -> dict:
    return json.loads((runs[world] / f"{case}.json").read_text())


every = pytest.mark.parametrize(("world", "case"), [(w, case) for w in WORLDS for case in ranks.cases(w)])
exact = pytest.mark.parametrize(("world", "case"), [(w, case) for w in WORLDS for case in EXACT])


@exact
def test_updates_are_those_of_a_plain_loop(runs, expected, world, case):
    statistics, weights = expected[case]
    near = {"rel": 5e-3, "abs": 1e-3} if is_rounded(case) else {"rel": 1e-4, "abs": 1e-6}
    for mine, theirs in zip(report(runs, world, case)["statistics"], statistics, strict=True):
        assert mine == pytest.approx(theirs, **near)
    assert max(s["grad_norm"] for s in statistics) > ranks.ADAM.gradient_clip  # clipping took part
    trained = load_file(runs[world] / f"{case}.weights")
    for name, tensor in trained.items():
        if is_rounded(case):
            assert (tensor - weights[name]).abs().mean() < 4e-4  # of a change of 3e-3
        else:
            torch.testing.assert_close(tensor, weights[name], rtol=0, atol=2e-5)
    tied = {"lm_head.weight"} if ranks.CASES[case][2] == "tied" else set()
    assert set(trained) == set(weights) - tied


@pytest.mark.parametrize("case", [case for case in ranks.cases(2) if case not in EXACT])
def test_bfloat16_keeps_float32_master_weights(runs, expected, case):
    statistics, weights = expected[case]
    for mine, theirs in zip(report(runs, 2, case)["statistics"], statistics, strict=True):
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.02)
    state = load_file(runs[2] / f"{case}.state")
    trained = load_file(runs[2] / f"{case}.weights")
    errors = []
    for name, tensor in trained.items():
        assert tensor.dtype == torch.bfloat16
        errors.append((tensor.float() - weights[name]).abs().flatten())
    assert torch.cat(errors).mean() < 2e-3
    masters = [tensor for name, tensor in state.items() if name.startswith("parameters/")]
    every = [name for name in trained if "frozen" not in case or is_trained(name)]
    assert len(masters) == (
        len(every)
        if "lora" not in case
        else (2 + ("dora" in case)) * 14 + 2 * ("critic" in ranks.CASES[case])
    )
    for master in masters:
        assert master.dtype == torch.float32
        assert not torch.equal(master, master.bfloat16().float())


def test_a_gradient_accumulated_in_float32_is_rounded_only_to_be_sent_in_bfloat16(runs):
    for world, case, rounded in (
        (1, "bf16-zero1", False),
        (2, "bf16-zero1", True),
        (2, "bf16-zero1-sent-in-float32", False),
    ):
        assert report(runs, world, case)["gradients_in_bfloat16"] == [rounded] * ranks.UPDATES, (world, case)


@every
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(runs, world, case):
    case_report = report(runs, world, case)
    assert case_report["loaded_state_is_the_saved"]
    assert case_report["resumed_is_uninterrupted"]


@pytest.mark.parametrize("case", [case for case in ranks.CASES if "8bit" in case])
def test_moments_in_8_bits_take_a_quarter_of_the_memory(runs, case):
    state = load_file(runs[2] / f"{case}.state")
    of_float32 = sum(t.nbytes for name, t in state.items() if name.startswith("exp_avg"))
    whole = 2 if ranks.CASES[case][0] == 0 else 1  # each of two ranks has all at stage 0
    assert report(runs, 2, case)["bytes_of_moments"] < 0.26 * whole * of_float32


@pytest.mark.parametrize("case", EXACT)
def test_one_rank_goes_on_from_the_state_of_two(runs, case):
    weights = load_file(runs[2] / f"{case}.weights")
    for name, tensor in load_file(runs[1] / f"{case}.resumed").items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=5e-3 if is_rounded(case) else 1e-5)


@every
def test_a_saved_model_is_the_trained_one(runs, world, case):
    _, bfloat16, kind = ranks.CASES[case]
    auto = AutoModelForTokenClassification if kind == "critic" else AutoModelForCausalLM
    model = auto.from_pretrained(runs[world] / case)
    assert model.dtype == (torch.bfloat16 if bfloat16 else torch.float32)
    for name, tensor in load_file(runs[world] / f"{case}.weights").items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert AutoTokenizer.from_pretrained(runs[world] / case).pad_token == "<pad>"
    assert not [path for path in runs[world].iterdir() if path.name.startswith(".")]
    case_report = report(runs, world, case)
    assert case_report["gathering_changes_nothing"]
    assert case_report["all_ranks_infer_the_same"]
    if kind != "critic":
        generated = torch.tensor([case_report["generated"]])
        with torch.no_grad():
            logits = model(generated).logits[0, len(ranks.PROMPT) - 1 : -1]
        chosen = logits.gather(1, generated[0, len(ranks.PROMPT) :, None])[:, 0]
        most = logits.amax(dim=1)
        assert generated[0, : len(ranks.PROMPT)].tolist() == ranks.PROMPT
        # Of two tokens as probable as each other bfloat16 takes either.
        torch.testing.assert_close(chosen, most, rtol=2**-7 if bfloat16 else 1e-6, atol=0)


@pytest.mark.parametrize(("world", "case"), [(w, c) for w in WORLDS for c in ranks.cases(w) if "lora" in c])
def test_peft_loads_the_adapter_that_lies_beside_the_merged_model(runs, world, case):
    _, bfloat16, kind = ranks.CASES[case]
    folder, base = runs[world] / f"{case}-adapter", ranks.make(kind)
    if bfloat16:
        base = base.bfloat16()
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["lora_alpha"]) == ("base", 4, 6.0)
    base.requires_grad_(False)
    loaded = PeftModel.from_pretrained(base, folder).merge_and_unload().state_dict()
    for name, tensor in load_file(runs[world] / f"{case}.weights").items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=2e-3 if bfloat16 else 1e-6)
    assert not torch.equal(loaded["model.layers.0.self_attn.q_proj.weight"], weights_of(ranks.make(kind)))


WITH_BASE = [
    (w, c) for w in WORLDS for c in ranks.cases(w) if "lora" in c or (c.startswith("frozen") and w > 1)
]


@pytest.mark.parametrize(("world", "case"), WITH_BASE)
def test_a_base_and_the_adapter_that_are_sent_make_the_merged_model_bit_for_bit(runs, world, case):
    assert report(runs, world, case)["sent_is_merged"]


def weights_of(model) -> torch.Tensor:
    return model.state_dict()["model.layers.0.self_attn.q_proj.weight"]


def test_the_experts_of_each_token_are_the_same_on_one_rank_and_two(runs):
    for case in (case for case in ranks.CASES if case.startswith("replayed")):
        one, two = (torch.tensor(report(runs, world, case)["routing"]) for world in (1, 2))
        assert one.shape == (len(ranks.batch(0)[0].tokens), 2, 2)
        assert torch.equal(one.sort().values, two.sort().values)


@pytest.mark.parametrize("case", EXACT)
def test_two_ranks_infer_what_one_does(runs, case):
    one, two = (report(runs, world, case)["inferred"] for world in (1, 2))
    assert one == pytest.approx(two, abs=2e-2 if is_rounded(case) else 2e-4)

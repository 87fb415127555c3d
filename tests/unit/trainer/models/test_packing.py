"""Packed sequences and the response head against padding and whole logits: the same numbers, the same gradients."""

import copy
import importlib.util
from dataclasses import replace

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values, sequence_scores
from rlhf_trainer.models.forward.attention import PACKED
from rlhf_trainer.models.forward.efficiency import fuse, recompute
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.forward.packing import can_pack
from rlhf_trainer.models.forward.response_head import install, response_head
from rlhf_trainer.models.forward.sequence_parallel import SequenceGroup, _Gather, check_heads
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.records import Sequences

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SEQUENCES = Sequences.pack(
    [
        (list(range(2, 2 + p)), [(7 * i + 11 * r) % 59 + 2 for i in range(a)])
        for r, (p, a) in enumerate([(3, 9), (1, 1), (6, 2), (2, 17), (4, 5)])
    ]
)


def llama(**changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, "num_key_value_heads": 2, **changes})).double().eval()


def mistral() -> MistralForCausalLM:
    torch.manual_seed(0)
    config = MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=4, head_dim=8)
    return MistralForCausalLM(config).double().eval()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=True
    )
    return GPT2LMHeadModel(config).double().eval()


def qwen2() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2)).double().eval()


def capped() -> Gemma2ForCausalLM:
    """Caps its scores, and its logits, which follows the output layer."""
    torch.manual_seed(0)
    config = Gemma2Config(
        **SHAPE, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.3, attn_logit_softcapping=1.0
    )
    return Gemma2ForCausalLM._from_config(config, attn_implementation="eager").double().eval()


READS = {
    "log-probabilities": ResponseLogprobs(),
    "tempered": ResponseLogprobs(0.7),
    "with entropies": ResponseLogprobs(1.3, entropy="gradient"),
}


def gradients(forward: Forward, read) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Outputs of one update's micro-batches in the order of the rows, and the gradient of a fixed sum of them."""
    by_index = {}
    for rows in forward.plan(SEQUENCES)[0]:
        micro = forward.build(SEQUENCES, rows)
        output = forward(micro, read)
        weights = torch.linspace(-1, 1, SEQUENCES.response_lengths.sum() * 2, dtype=torch.float64).view(-1, 2)
        output = output[:, None] if output.ndim == 1 else output
        (output * weights[micro.response_index][:, : output.shape[1]]).sum().backward()
        by_index |= dict(zip(micro.response_index.tolist(), output.detach(), strict=True))
    outputs = torch.stack([by_index[i] for i in sorted(by_index)])
    return outputs, {n: p.grad for n, p in forward.model.named_parameters()}


@pytest.mark.parametrize("make", [llama, mistral, gpt2, qwen2])
@pytest.mark.parametrize("name", READS)
def test_packed_is_exactly_padded(make, name):
    plain = Forward(make(), 40, 0)
    expected, by_padding = gradients(plain, READS[name])

    model = make()
    install(model)
    packed = Forward.choose(model, 40, 0, "packed")
    assert packed.packed
    assert response_head(model).fits
    outputs, by_packing = gradients(packed, READS[name])
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-10)
    assert by_packing.keys() == by_padding.keys()
    for parameter, gradient in by_padding.items():
        torch.testing.assert_close(by_packing[parameter], gradient, rtol=1e-8, atol=1e-9, msg=parameter)


def test_values_are_packed_too():
    torch.manual_seed(0)
    critic = LlamaForTokenClassification(LlamaConfig(**SHAPE, num_labels=1)).double().eval()
    sizes = SEQUENCES.response_lengths
    expected = infer(Forward(critic, 50, 0), SEQUENCES, response_values, sizes)
    packed = Forward.choose(critic, 50, 0, "packed")
    torch.testing.assert_close(infer(packed, SEQUENCES, response_values, sizes), expected, rtol=0, atol=1e-6)
    assert len(packed.plan(SEQUENCES)[0]) < len(Forward(critic, 50, 0).plan(SEQUENCES)[0])


WHOLE = Sequences.pack([([1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12]), ([20, 21], [22, 23])])
BRANCHED = replace(
    WHOLE,
    sampled=torch.tensor([1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1], dtype=torch.bool),
    branches=torch.tensor([0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0], dtype=torch.bool),
)
"""With two branches in the first row: tokens 7 to 9, and 10 to 12."""
APART = Sequences.pack([([1, 2, 3], [4, 5, 6]), ([7, 8], [9]), ([10], [11, 12]), ([20, 21], [22, 23])])
APART = replace(APART, sampled=torch.tensor([1, 0, 1, 1, 1, 1, 1, 1], dtype=torch.bool))


@pytest.mark.parametrize("kind", ["padded", "packed"])
@pytest.mark.parametrize("budget", [4, 100])
def test_a_branch_reads_nothing_of_what_came_before_it(kind, budget):
    """Each of its tokens is read, and trained, as if it were a sequence alone."""
    model = llama()
    forward = Forward(model, budget, 0) if kind == "padded" else Forward.choose(model, budget, 0, "packed")
    weights, results = torch.linspace(-1, 1, 8).double(), []
    for whole in (BRANCHED, APART):
        model.zero_grad()
        outputs, sequences = torch.zeros(8).double(), forward.divided(whole)
        for rows in forward.plan(sequences)[0]:
            micro = forward.build(sequences, rows)
            assert {*micro.owners.tolist()} <= {*range(len(rows) + 1)}
            read = forward(micro, ResponseLogprobs())
            (read * weights[micro.response_index]).sum().backward()
            outputs[micro.response_index] = read.detach()
        results.append((outputs, model.lm_head.weight.grad.clone()))
    (branched, mine), (apart, others) = results
    torch.testing.assert_close(branched, apart, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(mine, others, rtol=1e-8, atol=1e-9)


def test_a_padded_micro_batch_of_branches_is_within_its_budget():
    """The branches of a row are as many rows of the input, each as wide as the longest."""
    whole = Sequences.pack([([1], [*range(2, 12)]), ([1], [*range(2, 12)])])
    begins = torch.arange(20) > 10
    begins[::2] = False
    sampled = torch.arange(20) < 10
    sampled[10::2] = True
    sequences = replace(whole, sampled=sampled, branches=begins)
    forward = Forward(llama(), 24, 0)
    sizes = [forward.build(sequences, rows).input_ids.shape for rows in forward.plan(sequences)[0]]
    assert sizes == [(1, 11), (6, 2)]


def test_a_row_whose_branches_exceed_a_padded_budget_is_divided():
    """A long branch and six short ones, with a row that has room: none of these would be wider than the longest."""
    whole = Sequences.pack([([1], [*range(2, 23)]), ([1, 2], [3, 4])])
    begins = torch.zeros(23, dtype=torch.bool)
    begins[9:21:2] = True
    sequences = replace(whole, sampled=~begins, branches=begins)
    forward, roomy = (Forward(llama(), budget, 0) for budget in (24, 1000))
    divided = forward.divided(sequences)
    sizes = [forward.build(divided, rows).input_ids.shape for rows in forward.plan(divided)[0]]
    assert sizes == [(2, 10), (6, 4)]
    assert roomy.divided(sequences) is sequences
    expected = infer(roomy, sequences, ResponseLogprobs(), sequences.response_lengths)
    values = infer(forward, sequences, ResponseLogprobs(), sequences.response_lengths)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-10)


def test_a_reward_model_reads_the_last_branch():
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, num_labels=1, pad_token_id=0)
    forward = Forward(LlamaForSequenceClassification(config).double().eval(), 100, 0)
    scores, apart = (
        infer(forward, each, sequence_scores, torch.ones(len(each)).long()) for each in (BRANCHED, APART)
    )
    torch.testing.assert_close(scores, apart[[2, 3]])
    assert [row.tolist() for row in BRANCHED.last_branches().tokens.split([3, 4])] == [
        [10, 11, 12],
        [20, 21, 22, 23],
    ]


def test_a_model_that_cannot_pack_runs_padded_and_is_refused_where_packing_was_asked_for(monkeypatch):
    monkeypatch.setattr(
        "rlhf_trainer.models.forward.inference.Forward.device", torch.device("meta")
    )  # as if not a CPU
    assert not Forward.choose(windowed(), 40, 0, "auto").packed
    monkeypatch.undo()
    model = windowed()
    with pytest.raises(ValueError, match="Qwen2MoeForCausalLM"):
        Forward.choose(model, 40, 0, "packed")
    assert model.config._attn_implementation == "sdpa"


def chunked() -> Llama4ForCausalLM:
    own = {
        "attention_chunk_size": 8,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "head_dim": 8,
        "num_key_value_heads": 2,
    }
    return Llama4ForCausalLM(Llama4TextConfig(**{**SHAPE, **own}))


def windowed() -> Qwen2MoeForCausalLM:
    own = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "num_experts": 4}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**{**SHAPE, **own}, num_key_value_heads=2))


@pytest.mark.parametrize("make", [chunked, windowed])
def test_a_window_that_is_in_the_masks_alone_is_not_packed(make):
    """The trial's sequences are shorter than the window, so the trial would not notice."""
    torch.manual_seed(0)
    model = make().eval()
    long = Sequences.pack([([1, 2], [(7 * i) % 59 + 2 for i in range(40)])])
    auto = Forward.choose(model, 200, 0, "packed" if can_pack(model) else "padded")
    sizes = long.response_lengths
    expected = infer(Forward(model, 200, 0), long, ResponseLogprobs(), sizes)
    torch.testing.assert_close(infer(auto, long, ResponseLogprobs(), sizes), expected)


def test_a_window_as_wide_as_all_positions_is_none():
    """Phi-3.5-MoE's configuration has such a window."""
    model = windowed()
    assert not can_pack(model)
    model.config.sliding_window = model.config.max_position_embeddings
    assert can_pack(model)


def test_what_mixes_the_row_is_found_out():
    model = llama()
    layer = model.model.layers[0].mlp
    own = layer.forward
    layer.forward = lambda hidden: own(hidden) + hidden.mean(1, keepdim=True)
    with pytest.raises(InvalidJob, match=r"spec.trainer.attention: is packed, .* change with what is packed"):
        Forward.choose(model, 40, 0, "packed")


def test_what_a_model_or_machine_lacks_is_told_as_the_jobs_mistake(monkeypatch):
    """As InvalidJob (exit code 78), so that its processes are not restarted in vain."""
    with pytest.raises(
        InvalidJob,
        match=r"spec.trainer.gradientCheckpointing: Linear does not support gradient checkpointing",
    ):
        recompute(torch.nn.Linear(2, 2), "full")
    with pytest.raises(
        InvalidJob, match=r"spec.trainer.sequenceParallelSize: cannot divide 6 attention heads"
    ):
        check_heads(6, 2, 4)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(
        InvalidJob, match=r"spec.trainer.kernels: is liger, but liger-kernel is not installed"
    ):
        fuse(llama(), "liger")


def test_logits_that_are_capped_after_the_output_layer_are_read_whole():
    model, other = capped(), capped()
    install(other)
    sizes = SEQUENCES.response_lengths
    expected = infer(Forward(model, 40, 0), SEQUENCES, ResponseLogprobs(), sizes)
    computed = infer(Forward(other, 40, 0), SEQUENCES, ResponseLogprobs(), sizes)
    assert not response_head(other).fits
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("make", "fits"), [(llama, True), (capped, False)])
def test_a_head_in_float32_reads_and_generates_from_unrounded_logits(make, fits):
    model = make().bfloat16()
    hidden: list[torch.Tensor] = []
    install(model, float32=True)
    head = response_head(model)
    head.register_forward_pre_hook(lambda _module, given: hidden.append(given[0]))
    forward = Forward(model, 400, 0)
    micro = forward.build(SEQUENCES, range(len(SEQUENCES)))
    with torch.no_grad():
        read = forward(micro, ResponseLogprobs())
        logits = hidden[-1].double() @ head.weight.double().T
    assert head.fits is fits
    cap = getattr(model.config, "final_logit_softcapping", None)
    exact = cap * (logits / cap).tanh() if cap else logits
    rows = exact[micro.response_row, micro.response_column - 1].log_softmax(-1)
    expected = rows.gather(1, micro.targets[:, None])[:, 0]
    torch.testing.assert_close(read.double(), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        assert forward.logits(micro).dtype == torch.float32


@pytest.mark.parametrize(("make", "fits"), [(llama, True), (capped, False)])
def test_a_micro_batch_without_responses_tells_as_well_how_the_model_reads_its_output(make, fits):
    """On every rank alike: those that compute the logits once more would wait for the others for ever."""
    model = make()
    install(model)
    forward = Forward(model, 40, 0)
    assert forward(forward.build(SEQUENCES, []), ResponseLogprobs()).shape == (0,)
    assert response_head(model).fits is fits


@pytest.mark.parametrize(("checkpointing", "passes"), [("full", [2, 2, 2]), ("selective", [2, 1, 2])])
def test_activations_computed_again_give_the_same_gradient(checkpointing, passes):
    packed = Forward.choose(llama(num_hidden_layers=3), 40, 0, "packed")
    expected, by_keeping = gradients(packed, ResponseLogprobs())
    model = llama(num_hidden_layers=3, attention_dropout=0.5)  # which stays off
    recompute(model, checkpointing)
    calls = [0, 0, 0]

    def count(layer):
        calls[layer] += torch.is_grad_enabled()

    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, i=i: count(i))
    outputs, by_recomputing = gradients(Forward.choose(model, 40, 0, "packed"), ResponseLogprobs())
    batches = len(packed.plan(SEQUENCES)[0])
    assert calls == [n * batches for n in passes]
    torch.testing.assert_close(outputs, expected)
    for name, gradient in by_keeping.items():
        torch.testing.assert_close(by_recomputing[name], gradient, msg=name)


def test_generation_is_that_of_the_model_as_it_was():
    prompt, options = torch.tensor([[4, 9, 3]]), {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 60}
    expected = llama().generate(prompt, **options)
    model = llama()
    install(model)
    Forward.choose(model, 40, 0, "packed")
    assert model.config._attn_implementation == PACKED
    assert model.generate(prompt, **options).tolist() == expected.tolist()
    assert {n: p.shape for n, p in model.state_dict().items()} == {
        n: p.shape for n, p in llama().state_dict().items()
    }


def test_an_empty_micro_batch_is_connected_to_every_weight():
    model = llama()
    install(model)
    for forward in (Forward(model, 40, 0), Forward.choose(copy.deepcopy(model), 40, 0, "packed")):
        output = forward(forward.build(SEQUENCES, []), ResponseLogprobs(entropy="value"))
        assert output.shape == (0, 2)
        output.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in forward.model.parameters())


@pytest.mark.parametrize("rows", [[], [1], [1, 0]])
def test_a_shared_rows_padding_is_no_longer_than_its_longest_sequence(rows):
    """Attention on a GPU is undefined for tokens beyond that: their gradients reach every weight, though times 0."""
    micro = MicroBatch.build(SEQUENCES, rows, 0, packed=True)
    for rank in range(8):
        group, width = SequenceGroup(rank, 8, None), -(-micro.input_ids.shape[1] // 8)
        part = group._slice(micro, width, torch.arange(len(micro.targets)))
        assert part.attention_mask.flatten()[-1] == 8 * width
        assert part.longest == part.attention_mask.diff().max()


def test_sharing_a_row_makes_the_host_wait_for_no_gpu(monkeypatch):
    """A meta tensor has no data: whatever would copy some to the host raises."""
    monkeypatch.setattr(_Gather, "apply", lambda own, counts, _group: (own, counts))
    micro = MicroBatch.build(SEQUENCES, [0, 3], 0, "meta", packed=True)
    counts = [0, 0]
    for rank in range(2):
        group = SequenceGroup(rank, 2, None)
        values, counts = group.read(micro, lambda part: part.targets + part.response_column)
        assert values.device.type == "meta"
        assert len(values) == counts[rank]
    assert sum(counts) == len(micro.targets)


def test_packed_rows_say_where_they_begin():
    micro = MicroBatch.build(SEQUENCES, [2, 1], 0, packed=True)
    assert micro.packed
    assert micro.longest == 8
    assert micro.attention_mask.flatten().tolist() == [0, 8, 10]
    assert micro.position_ids.tolist() == [[*range(8), 0, 1]]
    assert micro.response_column.tolist() == [6, 7, 9]
    assert micro.targets.tolist() == SEQUENCES.row(2)[6:].tolist() + SEQUENCES.row(1)[1:].tolist()

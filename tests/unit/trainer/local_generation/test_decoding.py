"""The trainer's own decoding: what the model is asked to forward, the cache it is given, and the draw."""

import threading
from dataclasses import dataclass

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.local_generation.growing_cache import GrowingLayer
from rlhf_trainer.local_generation.processors import draw
from rlhf_trainer.local_generation.sampler import Sampled, generate_batch
from rlhf_trainer.tensors.records import Prompt

TOKENIZER = byte_tokenizer()
END = TOKENIZER.eos_token_id
PROMPTS = [Prompt(f"0/{i}", tuple(range(65, 65 + n)), {}) for i, n in enumerate((5, 1, 9, 2, 5))]


@dataclass
class Asked:
    """Shapes [n, T] of the input of each forward pass."""

    shapes: list[tuple[int, ...]]


@pytest.fixture
def model() -> LlamaForCausalLM:
    """One whose responses end at a quarter of the tokens."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENIZER), initializer_range=0.3, **shape)).eval()
    llama.lm_head = torch.nn.Linear(32, len(TOKENIZER))
    with torch.no_grad():
        llama.lm_head.weight.mul_(0.2)
        llama.lm_head.bias.zero_()
        llama.lm_head.bias[END] = 4.5
    return llama


@pytest.fixture
def forwarded(model) -> Asked:
    recorder = Asked([])
    model.register_forward_pre_hook(
        lambda _module, _args, given: recorder.shapes.append(tuple(given["input_ids"].shape)),
        with_kwargs=True,
    )
    return recorder


def responses(model, copies: int, penalties: Penalties = NO_PENALTIES, temperature: int = 1) -> list[Sampled]:
    prompts = [prompt for prompt in PROMPTS for _ in range(copies)]
    settings = Sampling(maxNewTokens=12).model_copy(update={"temperature": temperature})
    stops = StopStrings(TOKENIZER, ())
    torch.manual_seed(1)
    with torch.no_grad():
        return generate_batch(
            model, prompts, SamplingRequest(settings, penalties), [END], stops, END, threading.Event()
        )


def test_a_prompt_is_forwarded_once_and_a_response_to_its_end(model, forwarded):
    """Two of the prompts are the same, so four are forwarded; and log-probabilities are those of the response alone,
    whose row may have moved when others ended."""
    generated = responses(model, copies=8)
    rows = [sum(len(each.tokens) > length for each in generated) for length in range(12)]
    assert forwarded.shapes == [(4, 9), *((n, 1) for n in rows[1:] if n)]
    assert len(set(rows)) > 6, "responses of many lengths"
    prompts = [prompt for prompt in PROMPTS for _ in range(8)]
    for prompt, each in zip(prompts, generated, strict=True):
        assert each.finished == (each.tokens[-1] == END)
        assert END not in each.tokens[:-1]
        assert each.finished or len(each.tokens) == 12
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt.tokens, *each.tokens]])).logits[0]
        own = logits[len(prompt.tokens) - 1 : -1].log_softmax(-1).gather(-1, each.tokens[:, None])[:, 0]
        assert torch.allclose(each.logprobs, own, atol=1e-5)


def test_penalties_follow_the_rows_that_move(model):
    """Penalties are so high that no token of a prompt or of its response comes again."""
    with torch.no_grad():
        model.lm_head.bias -= 50  # a penalty multiplies what is negative
    generated = responses(model, copies=8, penalties=Penalties(repetition=1e6))
    assert len({len(each.tokens) for each in generated}) > 6
    prompts = [prompt for prompt in PROMPTS for _ in range(8)]
    for prompt, each in zip(prompts, generated, strict=True):
        whole = [*prompt.tokens, *each.tokens.tolist()]
        assert len(set(whole)) == len(whole)


def test_a_model_with_its_own_state_forwards_every_row(model, forwarded, monkeypatch):
    """Transformers then makes no cache that could be rearranged."""
    expected = responses(model, copies=2, temperature=0)
    del forwarded.shapes[:]
    monkeypatch.setattr(type(model), "_supports_default_dynamic_cache", lambda *_: False)
    generated = responses(model, copies=2, temperature=0)
    assert [each.tokens.tolist() for each in generated] == [each.tokens.tolist() for each in expected]
    assert forwarded.shapes == [(10, 9)] + [(10, 1)] * (max(len(each.tokens) for each in generated) - 1)


def test_a_growing_layer_holds_what_a_dynamic_one_does():
    grown, plain = GrowingLayer(), DynamicLayer()
    generator = torch.Generator().manual_seed(0)
    rows = 3
    for new, index in ((5, [0, 0, 1, 2, 2]), (1, [0, 4, 2]), (1, []), (9, [2, 0, 1]), (1, [1]), (1, [])):
        states = [torch.randn(rows, 2, new, 4, generator=generator) for _ in range(2)]
        for mine, theirs in zip(grown.update(*states), plain.update(*states), strict=True):
            assert torch.equal(mine, theirs)
        if index:
            for layer in (grown, plain):
                layer.reorder_cache(torch.tensor(index))
            rows = len(index)
        assert torch.equal(grown.keys, plain.keys)
        assert torch.equal(grown.values, plain.values)
        assert grown.get_seq_length() == plain.get_seq_length()


def test_draws_follow_the_distribution():
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    torch.manual_seed(0)
    drawn = draw(shares.log().expand(20_000, 5)).bincount(minlength=5) / 20_000
    assert torch.allclose(drawn, shares, atol=0.015)
    assert drawn[1] == drawn[4] == 0, "what truncation left out"
    with pytest.raises(FloatingPointError, match="NaN"):
        draw(torch.tensor([[0.0, float("nan")]]))

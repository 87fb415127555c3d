"""Answers made in the trainer: what was sampled, its log-probabilities, where it ends, and whose it is."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from tests.support.models import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_api.spec import Sampling
from rlhf_trainer.comms.ranks import Ranks
from rlhf_trainer.generation.shared import generate_shared
from rlhf_trainer.records import Prompt

TOKENIZER = byte_tokenizer()
ALONE = Ranks(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(f"0/{i}", tuple(range(65, 65 + n)), {}) for i, n in enumerate((5, 1, 9, 2, 5))]


@dataclass
class Local:
    """What generation needs of an engine: a whole model on one device, without DeepSpeed around it."""

    model: LlamaForCausalLM
    micro_batch_tokens: int = 60  # a few prompts to a batch
    device: str = "cpu"

    @contextmanager
    def gathered(self):
        yield self.model


@pytest.fixture
def engine() -> Local:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=TOKENIZER.pad_token_id,
    )
    return Local(LlamaForCausalLM(config).eval())


def likely_end(model: LlamaForCausalLM) -> None:
    """Makes the end token a third of all that is sampled."""
    model.lm_head = torch.nn.Linear(32, len(TOKENIZER))
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
        model.lm_head.bias.zero_()
        model.lm_head.bias[TOKENIZER.eos_token_id] = 4.9


def answers(engine: Local, *, seed: int = 1, **sampling):
    torch.manual_seed(seed)
    return generate_shared(engine, ALONE, TOKENIZER, PROMPTS, Sampling(**sampling), version=4)


def forward(model: LlamaForCausalLM, prompt, tokens, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of every token at every place of an answer, from one plain pass: [R, V]."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.tokens, *tokens]])).logits[0]
    return (logits[len(prompt.tokens) - 1 : -1] / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_a_plain_forward_pass(engine, temperature):
    for answer in answers(engine, temperature=temperature, maxNewTokens=12):
        expected = forward(engine.model, answer.prompt, answer.tokens, temperature)
        found = expected.gather(-1, torch.tensor(answer.tokens)[:, None]).squeeze(-1)
        assert torch.allclose(torch.tensor(answer.logprobs), found, atol=1e-5)


def test_a_least_length_bans_the_end_token_until_then(engine):
    for answer in answers(engine, minNewTokens=1, maxNewTokens=12):
        expected = forward(engine.model, answer.prompt, answer.tokens)
        first = expected[0].clone()
        first[TOKENIZER.eos_token_id] = -torch.inf
        expected[0] = first.log_softmax(-1)
        found = expected.gather(-1, torch.tensor(answer.tokens)[:, None]).squeeze(-1)
        assert torch.allclose(torch.tensor(answer.logprobs), found, atol=1e-5)


def test_an_answer_ends_with_the_end_token_or_at_the_limit(engine):
    likely_end(engine.model)
    found = answers(engine, maxNewTokens=6, answersPerPrompt=8)
    eos = TOKENIZER.eos_token_id
    for answer in found:
        assert 1 <= len(answer.tokens) <= 6
        assert eos not in answer.tokens[:-1], "nothing follows the end"
        assert answer.finished == (answer.tokens[-1] == eos)
        assert answer.finished or len(answer.tokens) == 6
        assert len(answer.logprobs) == len(answer.versions) == len(answer.tokens)
        assert set(answer.versions) == {4}
    assert {answer.finished for answer in found} == {True, False}


def test_any_of_several_end_tokens_ends_and_finishes_an_answer(engine):
    """The model repository names them, as Gemma's does the end of a turn beside the tokenizer's own."""
    ends = {TOKENIZER.eos_token_id, *range(0, 256, 4)}
    engine.model.generation_config.eos_token_id = sorted(ends)
    found = answers(engine, minNewTokens=2, maxNewTokens=6, answersPerPrompt=8)
    for answer in found:
        assert not set(answer.tokens[:-1]) & ends
        assert answer.finished == (answer.tokens[-1] in ends)
        assert answer.finished or len(answer.tokens) == 6
        assert len(answer.tokens) > 2
    assert {answer.finished for answer in found} == {True, False}


def test_no_answer_ends_before_its_least_length(engine):
    likely_end(engine.model)
    found = answers(engine, minNewTokens=4, maxNewTokens=6, answersPerPrompt=4)
    assert all(len(answer.tokens) >= 4 for answer in found)


def test_answers_come_in_the_order_of_their_prompts(engine):
    found = answers(engine, maxNewTokens=4, answersPerPrompt=3)
    assert [answer.prompt.id for answer in found] == [p.id for p in PROMPTS for _ in range(3)]
    assert len({tuple(answer.tokens) for answer in found}) > 3, "each is a sample of its own"


def test_the_same_seed_gives_the_same_answers(engine):
    first = answers(engine, seed=1, maxNewTokens=8)
    assert [a.tokens for a in answers(engine, seed=1, maxNewTokens=8)] == [a.tokens for a in first]
    assert [a.tokens for a in answers(engine, seed=2, maxNewTokens=8)] != [a.tokens for a in first]


def test_truncated_sampling_draws_from_what_is_left(engine):
    for answer in answers(engine, maxNewTokens=5, topK=3):
        best = forward(engine.model, answer.prompt, answer.tokens)
        best[0, TOKENIZER.eos_token_id] = -torch.inf
        for place, token in enumerate(answer.tokens):
            assert token in best[place].topk(3).indices
    for answer in answers(engine, maxNewTokens=5, topK=1):
        assert set(answer.logprobs) == {0.0}, "one choice is certain"


def test_the_model_repository_has_no_say_in_sampling(engine):
    """Its generation_config.json is for chatting: penalties there would change what PPO believes it sampled."""
    expected = [a.tokens for a in answers(engine, maxNewTokens=8)]
    wishes = {
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 1,
        "suppress_tokens": list(range(90)),
        "top_k": 2,
    }
    for name, value in (wishes | {"temperature": 0.1, "max_length": 3, "typical_p": 0.5}).items():
        setattr(engine.model.generation_config, name, value)
    assert [a.tokens for a in answers(engine, maxNewTokens=8)] == expected
    assert engine.model.generation_config.repetition_penalty == 5.0, "it is exported as it came"

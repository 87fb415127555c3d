"""Answers made in the trainer: what was sampled, its log-probabilities, where it ends, and whose it is."""

import threading
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, small_llama
from transformers import LlamaForCausalLM
from vllm.v1.sample.ops.penalties import apply_all_penalties

from rlhf_api.sections.evaluation import Penalties
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.local_generation.processors import Penalized, warpers
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.responses import collected, message
from rlhf_trainer.tensors.packed import flat_floats
from rlhf_trainer.tensors.records import Prompt, Rollout

TOKENIZER = byte_tokenizer()
ALONE = Ranks(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(f"0/{i}", tuple(range(65, 65 + n)), {}) for i, n in enumerate((5, 1, 9, 2, 5))]


@dataclass
class Local:
    """The part of an engine that generation uses: a whole model on one device, without DeepSpeed around it."""

    model: LlamaForCausalLM
    micro_batch_tokens: int = 60  # a few prompts to a batch
    device: str = "cpu"

    @contextmanager
    def gathered(self):
        yield self.model


@pytest.fixture
def engine() -> Local:
    torch.manual_seed(0)
    untied = {"tie_word_embeddings": False, "eos_token_id": TOKENIZER.eos_token_id}
    return Local(small_llama(initializer_range=0.3, **untied).eval())


def likely_end(model: LlamaForCausalLM) -> None:
    """Makes the end token a third of all that is sampled."""
    model.lm_head = torch.nn.Linear(32, len(TOKENIZER))
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
        model.lm_head.bias.zero_()
        model.lm_head.bias[TOKENIZER.eos_token_id] = 4.9


def answers(engine: Local, *, seed: int = 1, **sampling):
    torch.manual_seed(seed)
    return generate_shared(
        engine, ALONE, TOKENIZER, PROMPTS, SamplingRequest(Sampling(**sampling)), 4, threading.Event()
    )


def forward(model: LlamaForCausalLM, prompt, tokens, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of every token at every place of an answer, from one plain pass: [R, V]."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.tokens, *tokens]])).logits[0]
    return (logits[len(prompt.tokens) - 1 : -1] / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_a_plain_forward_pass(engine, temperature):
    for answer in answers(engine, temperature=temperature, maxNewTokens=12):
        expected = forward(engine.model, answer.prompt, answer.tokens, temperature)
        logprobs = expected.gather(-1, torch.tensor(answer.tokens)[:, None]).squeeze(-1)
        assert torch.allclose(torch.tensor(answer.logprobs), logprobs, atol=1e-5)


def test_a_least_length_bans_the_end_token_until_then(engine):
    for answer in answers(engine, minNewTokens=1, maxNewTokens=12):
        expected = forward(engine.model, answer.prompt, answer.tokens)
        first = expected[0].clone()
        first[TOKENIZER.eos_token_id] = -torch.inf
        expected[0] = first.log_softmax(-1)
        logprobs = expected.gather(-1, torch.tensor(answer.tokens)[:, None]).squeeze(-1)
        assert torch.allclose(torch.tensor(answer.logprobs), logprobs, atol=1e-5)


def test_an_answer_ends_with_the_end_token_or_at_the_limit(engine):
    likely_end(engine.model)
    generated = answers(engine, maxNewTokens=6, responsesPerPrompt=8)
    eos = TOKENIZER.eos_token_id
    for answer in generated:
        assert 1 <= len(answer.tokens) <= 6
        assert eos not in answer.tokens[:-1], "nothing follows the end"
        assert answer.finished == (answer.tokens[-1] == eos)
        assert answer.finished or len(answer.tokens) == 6
        assert len(answer.logprobs) == len(answer.versions) == len(answer.tokens)
        assert set(answer.versions) == {4}
    assert {answer.finished for answer in generated} == {True, False}


def test_any_of_several_end_tokens_ends_and_finishes_an_answer(engine):
    """The model repository names them, as Gemma's does the end of a turn beside the tokenizer's own."""
    ends = {TOKENIZER.eos_token_id, *range(0, 256, 4)}
    engine.model.generation_config.eos_token_id = sorted(ends)
    generated = answers(engine, minNewTokens=2, maxNewTokens=6, responsesPerPrompt=8)
    for answer in generated:
        assert not set(answer.tokens[:-1]) & ends
        assert answer.finished == (answer.tokens[-1] in ends)
        assert answer.finished or len(answer.tokens) == 6
        assert len(answer.tokens) > 2
    assert {answer.finished for answer in generated} == {True, False}


def text(tokens) -> str:
    return TOKENIZER.decode(list(tokens), skip_special_tokens=True)


def test_a_response_ends_with_the_token_that_completes_a_stop_string(engine):
    """The first tokens apart, as a least length says. They stay as sampled; the text ends before the string."""
    stop = (*"abcdefghijkl", "never sampled")
    generated = answers(engine, minNewTokens=2, maxNewTokens=12, responsesPerPrompt=4, stop=stop)
    ended = [answer for answer in generated if text(answer.tokens).endswith(stop)]
    assert 3 < len(ended) < len(generated)
    stops = StopStrings(TOKENIZER, stop)
    for answer in generated:
        assert not any(string in text(answer.tokens[2:-1]) for string in stop), "nothing follows it"
        assert answer.finished == (answer in ended or answer.tokens[-1] == TOKENIZER.eos_token_id)
        assert len(answer.logprobs) == len(answer.versions) == len(answer.tokens)
        assert stops.text(answer.prompt.tokens, answer.tokens) == text(
            answer.tokens[: -1 if answer in ended else None]
        )


@pytest.mark.parametrize("penalties", [Penalties(1.3), Penalties(1, 0.7), Penalties(0.8, -1.5, 0.4)])
def test_penalties_are_those_of_vllm(penalties):
    """Padding on the left counts for nothing, though token 7, with which it pads, occurs in a prompt."""
    prompts, responses = [[1, 7, 2], [3]], [[4, 4, 1], [5, 3, 5]]
    logits, vocabulary = torch.randn(2, 9, generator=torch.Generator().manual_seed(0)), 9
    padded = torch.tensor([[1, 7, 2], [7, 7, 3]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    penalized = Penalized(penalties, padded, mask)(torch.cat([padded, torch.tensor(responses)], 1), logits)
    padded_prompts = torch.tensor([prompts[0], prompts[1] + [vocabulary] * 2])
    repetition, presence, frequency = (torch.full((2,), value) for value in penalties)
    given = logits.clone(), padded_prompts, presence, frequency, repetition, responses
    assert torch.allclose(penalized, apply_all_penalties(*given))
    assert not torch.allclose(penalized, logits)


def test_what_is_generated_with_penalties_repeats_nothing(engine):
    """A penalty so high that a token comes twice only when all others did."""
    torch.manual_seed(1)
    request = SamplingRequest(Sampling(maxNewTokens=12), Penalties(presence=2000.0))
    for answer in generate_shared(engine, ALONE, TOKENIZER, PROMPTS, request, 4, threading.Event()):
        assert len(set(answer.tokens)) == len(answer.tokens)


def test_no_answer_ends_before_its_least_length(engine):
    likely_end(engine.model)
    generated = answers(engine, minNewTokens=4, maxNewTokens=6, responsesPerPrompt=4)
    assert all(len(answer.tokens) >= 4 for answer in generated)


def test_answers_come_in_the_order_of_their_prompts(engine):
    generated = answers(engine, maxNewTokens=4, responsesPerPrompt=3)
    assert [answer.prompt.id for answer in generated] == [p.id for p in PROMPTS for _ in range(3)]
    assert len({tuple(answer.tokens) for answer in generated}) > 3, "each is a sample of its own"


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
    """Penalties in its generation_config.json would change the distribution that PPO assumes."""
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


@pytest.mark.parametrize(
    "sampling",
    [{"topK": 7}, {"topK": 20, "topP": 0.9}, {"topK": 20, "minP": 0.3}, {"topK": 300}, {"topK": 1}],
)
def test_the_trainer_replays_what_truncation_left_out(engine, sampling):
    """A ban of the end token is replayed too; 300 kept tokens are more than the limit, and are not."""
    most = sampling["topK"]
    generated = answers(engine, temperature=0.8, minNewTokens=2, maxNewTokens=12, **sampling)
    if most == 300:
        assert not any(answer.kept_counts for answer in generated)
        return
    for answer in generated:
        assert len(answer.kept_counts) == len(answer.tokens)
        assert max(answer.kept_counts) < most
    assert (
        not {"topP", "minP"} & {*sampling} or min(min(answer.kept_counts) for answer in generated) < most - 1
    )
    arrays, header = message(Responses(generated), {prompt.id: i for i, prompt in enumerate(PROMPTS)})
    sequences = collected(Told(arrays, header), 1, Responses(), {}).episode.columns.sequences
    read = ResponseLogprobs(0.8)
    replayed = infer(Forward(engine.model, 512, 257), sequences, read, sequences.response_lengths)
    sampled = flat_floats(answer.logprobs for answer in generated)
    assert torch.allclose(replayed, sampled, atol=1e-5)
    whole = replace(sequences, kept=None)
    plain = infer(Forward(engine.model, 512, 257), whole, read, sequences.response_lengths)
    assert not torch.allclose(plain, sampled, atol=1e-2)


def test_min_p_leaves_out_what_is_less_likely_than_its_share_of_the_likeliest():
    """In the order of vLLM, before top-p: of 0.5, 0.2, 0.18, 0.12 min-p leaves 0.5 and 0.2, and top-p of 0.7 one."""
    logits = torch.tensor([[0.5, 0.2, 0.18, 0.12]]).log()
    ids, left = torch.zeros(1, 1, dtype=torch.int64), dict[float, list[bool]]()
    for top_p in (1.0, 0.7):
        scores = logits
        for warp in warpers(Sampling(minP=0.38, topP=top_p)):
            scores = warp(ids, scores)
        left[top_p] = scores.isfinite()[0].tolist()
    assert left == {1.0: [True, True, False, False], 0.7: [True, False, False, False]}


def test_each_token_keeps_its_version_on_every_rank():
    ids = [prompt.id for prompt in PROMPTS[:3]]
    versions = [[3, 3, 4], [4, 4], [2, 3, 2, 2]]
    rollouts = [
        Rollout(prompt, array("i", own), array("f", [-1.0] * len(own)), array("i", own), finished=True)
        for prompt, own in zip(PROMPTS, versions, strict=False)
    ]
    arrays, header = message(Responses(rollouts), {name: i for i, name in enumerate(ids)})
    assert len(arrays["versions"]) == 6, "one for each run of a response"
    episode = collected(Told(arrays, header), 1, Responses(), {}).episode
    assert episode.columns["versions"].tolist() == [version for own in versions for version in own]
    assert episode.columns["versions"].dtype == torch.int64


@dataclass
class Told:
    """Ranks that were told this."""

    arrays: dict[str, torch.Tensor]
    header: dict[str, object]

    def share(self, make):  # noqa: ARG002
        return self.arrays, self.header

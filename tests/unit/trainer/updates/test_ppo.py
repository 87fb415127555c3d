"""PPO's columns and losses against plain loops in double precision, and what must not change them."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny.models import small_llama
from tests.unit.api.manifests import job

from rlhf_api.algorithms.ppo import PPO
from rlhf_api.graph import minibatch_count
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values
from rlhf_trainer.metrics.step import step_metrics
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.ops import COMPUTE, LOSSES, OpContext
from rlhf_trainer.tensors.batches import MicroBatch, plan
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.updates.updates import balanced_minibatches, minibatches

PAIRS = [((1, 2), (3, 4, 5)), ((6,), (7,)), ((8, 9, 10), (11, 12)), ((13, 14), (15, 16, 17, 18))]
SCORES = [1.0, -0.5, 2.0, 0.25]


def uneven(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def context(ppo: PPO) -> OpContext:
    return OpContext(job().spec, ppo)


def experience(ppo: PPO, pairs=PAIRS, scores=SCORES) -> Columns:
    """The columns that a step of PPO trains on."""
    sequences = Sequences.pack(pairs)
    answers = int(sequences.response_lengths.sum())
    logprobs = -uneven(1, answers).abs() - 0.1
    columns = Columns(sequences).with_tokens(
        sampled_logprobs=logprobs + 0.001 * uneven(5, answers),
        versions=torch.full((answers,), 7),
        logprobs=logprobs,
        reference_logprobs=logprobs + 0.3 * uneven(2, answers),
        values=uneven(3, answers),
    )
    finished = torch.tensor([i != 2 for i in range(len(pairs))])
    columns = columns.with_rows(scores=torch.tensor(scores), finished=finished)
    for function in ("token_rewards", "gae"):
        columns = COMPUTE[function](columns, context(ppo))
    return columns


def by_hand(made: Columns, ppo: PPO) -> tuple[list[float], list[float]]:
    """Whitened advantages and returns, one token after the other."""
    advantages, returns = [], []
    at = 0
    for row, length in enumerate(made.sequences.response_lengths.tolist()):
        tokens = range(at, at + length)
        p, q = made["logprobs"].double().tolist(), made["reference_logprobs"].double().tolist()
        v = made["values"].double().tolist()
        following, mine = 0.0, []
        for t in reversed(tokens):
            reward = -ppo.kl_coefficient * (p[t] - q[t]) + (
                made["scores"][row].item() if t == tokens[-1] else 0.0
            )
            next_value = v[t + 1] if t != tokens[-1] else 0.0
            following = reward + ppo.gamma * next_value - v[t] + ppo.gamma * ppo.gae_lambda * following
            mine.insert(0, following)
        advantages += mine
        returns += [a + v[t] for a, t in zip(mine, tokens, strict=True)]
        at += length
    if ppo.whiten_advantages:
        mean, spread = statistics.fmean(advantages), statistics.pstdev(advantages)
        advantages = [(a - mean) / spread for a in advantages]
    return advantages, returns


@pytest.mark.parametrize("whiten", [True, False])
def test_experience_equals_plain_loops(whiten):
    ppo = PPO(klCoefficient=0.13, gamma=0.9, gaeLambda=0.8, whitenAdvantages=whiten)
    made = experience(ppo)
    advantages, returns = by_hand(made, ppo)
    assert made["advantages"].tolist() == pytest.approx(advantages, abs=2e-6)
    assert made["returns"].tolist() == pytest.approx(returns, abs=2e-6)


def test_experience_is_joined_and_picked_from():
    made = experience(PPO())
    parts = [made.select(torch.tensor(rows)) for rows in ([0], [1, 2], [3])]
    whole = Columns.join(parts)
    assert torch.equal(whole.sequences.tokens, made.sequences.tokens)
    assert torch.equal(whole["advantages"], made["advantages"])
    assert torch.equal(whole["scores"], made["scores"])
    assert whole["versions"].dtype == torch.int64


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**31))
def test_minibatches_cover_every_row_once_an_epoch(count, size, epochs, seed):
    batches = [batch.tolist() for batch in minibatches(count, size, epochs, seed)]
    assert batches == [batch.tolist() for batch in minibatches(count, size, epochs, seed)]
    each = minibatch_count(count, size)
    assert len(batches) == epochs * each
    for epoch in range(epochs):
        mine = batches[epoch * each : (epoch + 1) * each]
        assert sorted(row for batch in mine for row in batch) == list(range(count))
        assert max(map(len, mine)) - min(map(len, mine)) <= 1
        assert max(map(len, mine)) <= 1.5 * size
        assert min(map(len, mine)) >= min(count, 0.75 * size - 1)
        if count % size == 0:
            assert {len(batch) for batch in mine} == {size}


def test_a_dropped_response_takes_no_update_away():
    assert [len(batch) for batch in minibatches(511, 256, 1, 0)] == [256, 255]
    balanced = balanced_minibatches(torch.ones(511, dtype=torch.int64), 256, 1, 0)
    assert sorted(len(batch) for batch in balanced) == [255, 256]


@given(st.lists(st.integers(1, 99), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 2**31))
def test_balanced_minibatches_cover_every_row_once_an_epoch(lengths, size, seed):
    tokens, epochs, each = torch.tensor(lengths), 2, minibatch_count(len(lengths), size)
    batches = [batch.tolist() for batch in balanced_minibatches(tokens, size, epochs, seed)]
    assert batches == [batch.tolist() for batch in balanced_minibatches(tokens, size, epochs, seed)]
    assert len(batches) == epochs * each
    for mine in (batches[:each], batches[each:]):
        assert sorted(row for batch in mine for row in batch) == list(range(len(lengths)))
        assert max(map(len, mine)) - min(map(len, mine)) <= 1


def test_balanced_minibatches_of_a_long_tail_have_equal_tokens_and_other_rows_each_epoch():
    tokens = (
        (torch.randn(1024, generator=torch.Generator().manual_seed(1)) + 6.4).exp().clamp(32, 8192).long()
    )

    def spread(dealt):
        sums = torch.tensor([float(tokens[rows].sum()) for rows in dealt])
        return float(sums.std() / sums.mean())

    epochs = [[set(rows.tolist()) for rows in balanced_minibatches(tokens, 64, 1, seed)] for seed in range(9)]
    assert spread(minibatches(1024, 64, 1, 0)) > 0.05
    assert all(spread([torch.tensor(list(rows)) for rows in epoch]) < 0.001 for epoch in epochs)
    shared = [max(len(rows & other) for other in epochs[0]) for epoch in epochs[1:] for rows in epoch]
    assert max(shared) < 20, "of 64; by chance it is 4 of any two sets"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_llama(initializer_range=0.2).eval()


def losses(model, made: Columns, ppo: PPO, ranks: int, budget: int) -> dict[str, float]:
    """The sums over all micro-batches of all ranks, as an update takes them."""
    total: dict[str, float] = {}
    shares = plan(made.sequences.lengths.tolist(), ranks, budget)
    actor, critic = (LOSSES[name](made, context(ppo)) for name in ("policy", "value"))
    for rows in (rows for share in shares for rows in share):
        micro = MicroBatch.build(made.sequences, rows, pad_token_id=257)
        with torch.no_grad():
            logits = Forward(model, 64, 257).logits(micro)
        value, named = actor(ResponseLogprobs(entropy="value")(logits, micro), micro)
        against, _ = critic(response_values(logits, micro), micro)
        for name, scalar in {"policy": value, "critic": against, **named}.items():
            total[name] = total.get(name, 0.0) + scalar.item()
    return total


@settings(max_examples=15)
@given(order=st.permutations(range(4)), ranks=st.integers(1, 3), budget=st.integers(1, 40))
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_order_and_micro_batches_change_no_loss(model, aggregation, order, ranks, budget):
    ppo = PPO(lossAggregation=aggregation, clipRatio=0.3)
    made = experience(ppo)
    computed = losses(model, made.select(torch.tensor(order)), ppo, ranks, budget)
    assert computed == pytest.approx(losses(model, made, ppo, 1, 1000), rel=2e-5, abs=1e-6)


def test_log_probabilities_do_not_depend_on_the_neighbours(model):
    sequences = Sequences.pack(PAIRS)

    def logprobs(budget: int) -> torch.Tensor:
        sizes = sequences.response_lengths
        return infer(Forward(model, budget, 257), sequences, ResponseLogprobs(), sizes)

    assert torch.allclose(logprobs(1), logprobs(1000), atol=2e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_losses_equal_plain_loops(model, aggregation):
    ppo = PPO(lossAggregation=aggregation, clipRatio=0.3, clipValue=0.2)
    made = experience(ppo)
    lengths = made.sequences.response_lengths.tolist()
    policy = critic = outside = entropy = total_ratio = 0.0
    at = 0
    for (prompt, answer), length in zip(PAIRS, lengths, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0].double()
        for k, token in enumerate(answer):
            t, column = at + k, len(prompt) + k - 1
            weight = 1 / sum(lengths) if aggregation == "token" else 1 / (len(lengths) * length)
            ratio = math.exp(logits[column].log_softmax(-1)[token].item() - made["logprobs"][t].item())
            clip = min(max(ratio, 0.7), 1.3)
            policy -= weight * min(ratio * made["advantages"][t].item(), clip * made["advantages"][t].item())
            outside += weight * (abs(ratio - 1) > 0.3)
            total_ratio += ratio
            probabilities = logits[column].softmax(-1)
            entropy -= (probabilities * probabilities.log()).sum().item()
            value, old, goal = logits[column, 0].item(), made["values"][t].item(), made["returns"][t].item()
            near = min(max(value, old - 0.2), old + 0.2)
            critic += weight * max((value - goal) ** 2, (near - goal) ** 2) / 2
        at += length
    computed = losses(model, made, ppo, 1, 1000)
    assert computed["policy"] == pytest.approx(policy, rel=1e-4)
    assert computed["critic"] == pytest.approx(critic, rel=1e-4)
    assert computed["clip_fraction"] == pytest.approx(outside, abs=1e-6)
    assert computed["entropy"] == pytest.approx(entropy / sum(lengths), rel=1e-5)
    assert computed["ratio_mean"] == pytest.approx(total_ratio / sum(lengths), rel=1e-5)
    assert computed["update_kl"] >= 0


def test_metrics_say_what_they_are_called():
    made = experience(PPO())
    metrics = step_metrics(made, torch.ones(len(made["logprobs"]), dtype=torch.bool))
    assert metrics["reward_mean"] == pytest.approx(statistics.fmean(SCORES))
    assert metrics["reward_std"] == pytest.approx(statistics.pstdev(SCORES))
    assert metrics["kl_mean"] == pytest.approx((made["logprobs"] - made["reference_logprobs"]).mean().item())
    assert metrics["response_length_mean"] == 2.5
    assert metrics["response_length_p50"] in made.lengths.tolist(), "the length of a response"
    assert metrics["response_length_p99"] == max(made.lengths.tolist())
    assert metrics["finished_share"] == 0.75
    assert 0 < metrics["logprob_difference"] < 0.01
    assert metrics["ratio_outside_share"] == 0
    assert metrics["value_explained_variance"] <= 1
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_reward_metrics_of_the_largest_scores_are_finite():
    """Their sum is no float32."""
    scores = [3.3e38, 3.3e38, -3.3e38, 3.3e38]
    columns = Columns(Sequences.pack([((1,), (2,))] * 4)).with_rows(
        scores=torch.tensor(scores), finished=torch.ones(4)
    )
    metrics = step_metrics(columns)
    assert metrics["reward_mean"] == pytest.approx(statistics.fmean(scores))
    assert metrics["reward_std"] == pytest.approx(statistics.pstdev(scores))


def test_metrics_of_a_single_token_are_finite():
    made = experience(PPO(), pairs=[((1,), (2,))], scores=[1.0])
    assert made["advantages"].tolist() == [0.0]
    assert all(
        math.isfinite(value)
        for value in step_metrics(made, torch.ones(len(made["logprobs"]), dtype=torch.bool)).values()
    )

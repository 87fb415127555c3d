"""Rewards and advantages of every algorithm against plain loops in double precision."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.trainer.ops.made import LENGTHS, columns, context, groups, lists

from rlhf_trainer.maths.advantages import distillation_advantages
from rlhf_trainer.maths.values import Moments, update_moments
from rlhf_trainer.ops import COMPUTE, OpContext
from rlhf_trainer.tensors.columns import Columns

CLOSE = {"rel": 1e-5, "abs": 2e-6}


def penalty(kind: str, p: float, q: float) -> float:
    difference = p - q
    return {"k1": difference, "k2": difference**2 / 2, "k3": math.exp(-difference) - 1 + difference}[kind]


def overlong(length: int, limit: int, buffer: int) -> float:
    over = length - (limit - buffer)
    return 0.0 if over <= 0 else -min(over, buffer) / buffer


def kl_of(made: Columns, kind: str) -> list[list[float]]:
    pairs = zip(lists(made, "logprobs"), lists(made, "reference_logprobs"), strict=True)
    return [[penalty(kind, p, q) for p, q in zip(*pair, strict=True)] for pair in pairs]


def flat(nested: list[list[float]]) -> list[float]:
    return [value for part in nested for value in part]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_token_rewards(kind, baseline, masked):
    """With all settings of REINFORCE++, and overlong responses penalised."""
    made = columns()
    if masked:
        made = COMPUTE["overlong_mask"](made, context("reinforce_pp"))
    ctx = context(
        "reinforce_pp",
        f"klCoefficient: 0.3, klEstimator: {kind}, overlongBuffer: 3, overlongPenalty: 0.7, "
        f"groupBaseline: {str(baseline).lower()}",
    )
    lengths, finished = made.lengths.tolist(), made["finished"].tolist()
    scores = [s + 0.7 * overlong(n, 5, 3) for s, n in zip(made["scores"].tolist(), lengths, strict=True)]
    if baseline:
        for rows in groups(made).values():
            mean = statistics.fmean(scores[row] for row in rows)
            for row in rows:
                scores[row] -= mean
    expected = [[-0.3 * k for k in part] for part in kl_of(made, kind)]
    for row, part in enumerate(expected):
        if masked and not finished[row]:
            part[:] = [0.0] * len(part)
        part[-1] += scores[row]
    computed = COMPUTE["token_rewards_centered" if baseline else "token_rewards"](made, ctx)
    assert computed["token_rewards"].tolist() == pytest.approx(flat(expected), **CLOSE)


def test_fine_grained_scores_are_rewards_of_their_tokens():
    made = columns()
    made = Columns(made.sequences, made.tokens, {k: v for k, v in made.rows.items() if k != "scores"})
    token_scores = torch.randn(len(made["logprobs"]), generator=torch.Generator().manual_seed(3))
    ctx = context("ppo", "klCoefficient: 0.1, overlongBuffer: 3")
    scored = COMPUTE["sum_scores"](made.with_tokens(token_scores=token_scores), ctx)
    parts = lists(scored, "token_scores")
    assert scored["scores"].tolist() == pytest.approx([sum(part) for part in parts], **CLOSE)
    expected = [
        [s - 0.1 * k for s, k in zip(*pair, strict=True)]
        for pair in zip(parts, kl_of(made, "k1"), strict=True)
    ]
    for part in expected:
        part[-1] += overlong(len(part), 5, 3)
    assert COMPUTE["token_rewards"](scored, ctx)["token_rewards"].tolist() == pytest.approx(
        flat(expected), **CLOSE
    )


@pytest.mark.parametrize("scored", [False, True])
def test_rewards_of_turns_are_at_their_last_tokens_and_the_rest_at_the_episodes_end(scored):
    made, turns = columns(), torch.zeros(sum(LENGTHS))
    turns[[1, 4, 8]] = torch.tensor([0.5, -1.0, 2.0])  # of the responses 0, 2 and 3
    role = made["scores"] if scored else torch.zeros(len(LENGTHS))
    made = made.with_tokens(turn_rewards=turns)
    made = made.with_rows(reward_scores=role) if scored else made
    computed = COMPUTE["environment_scores"](made, context("ppo"))
    scores = made["environment_reward"] + role
    assert computed["scores"].tolist() == scores.tolist()
    expected = [part.tolist() for part in turns.double().split(list(LENGTHS))]
    for part, score in zip(expected, scores.tolist(), strict=True):
        part[-1] += score - sum(part)
    assert computed["token_scores"].tolist() == pytest.approx(flat(expected), **CLOSE)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_rewards_of_whole_responses(kind):
    made = columns()
    ctx = context("rloo", f"klCoefficient: 0.3, klEstimator: {kind}, overlongBuffer: 2")
    computed = COMPUTE["response_rewards"](made, ctx)["response_rewards"]
    expected = [
        score + overlong(len(kl), 5, 2) - 0.3 * sum(kl)
        for score, kl in zip(made["scores"].tolist(), kl_of(made, kind), strict=True)
    ]
    assert computed.tolist() == pytest.approx(expected, **CLOSE)


def test_a_penalty_in_the_loss_is_not_in_the_rewards_too():
    made = columns()
    for algorithm, function in (("grpo", "response_rewards"), ("reinforce_pp", "token_rewards")):
        ctx = context(algorithm, "klCoefficient: 0.3, klIn: loss, klEstimator: k3")
        computed = COMPUTE[function](made, ctx)[function]
        sums = (
            computed
            if function == "response_rewards"
            else [p.sum() for p in computed.split(made.lengths.tolist())]
        )
        assert [float(s) for s in sums] == pytest.approx(made["scores"].tolist())


def test_an_adapted_coefficient_is_the_one_that_counts():
    made, ctx = columns(), context("rloo", "klCoefficient: 0.3, klTarget: 6.0")
    ctx.state["kl_coefficient"] = 0.0
    assert COMPUTE["response_rewards"](made, ctx)["response_rewards"].tolist() == made["scores"].tolist()


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_a_teachers_advantages(gamma, kind, scored):
    """Each token's divergence, with that of later ones discounted, and the score less the mean of its group."""
    made = columns()
    if not scored:
        made = Columns(made.sequences, made.tokens, {k: v for k, v in made.rows.items() if k != "scores"})
    ctx = context("distillation", f"klCoefficient: 0.3, klEstimator: {kind}, gamma: {gamma}")
    expected = [
        [-0.3 * sum(gamma ** (s - t) * kl[s] for s in range(t, len(kl))) for t in range(len(kl))]
        for kl in kl_of(made, kind)
    ]
    if scored:
        scores = made["scores"].double().tolist()
        for rows in groups(made).values():
            mean = statistics.fmean(scores[row] for row in rows)
            for row in rows:
                expected[row] = [value + scores[row] - mean for value in expected[row]]
    advantages = COMPUTE["distillation"](made, ctx)["advantages"]
    assert advantages.tolist() == pytest.approx(flat(expected), **CLOSE)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_teachers_advantages_have_the_gradient_of_the_divergence(gamma):
    """Over all responses of two tokens, weighted by their probability: with gamma 1 that of the responses' KL, with 0
    that of the tokens' KLs in the states that the policy leads to now."""
    draw, size = torch.Generator().manual_seed(0), 3
    first, teacher = torch.randn(2, size, generator=draw, dtype=torch.float64)
    second, later = torch.randn(2, size, size, generator=draw, dtype=torch.float64)
    weights = [first.requires_grad_(), second.requires_grad_()]

    def gradient(of: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(of, weights, retain_graph=True)])

    p, q = [first.log_softmax(-1), second.log_softmax(-1)], [teacher.log_softmax(-1), later.log_softmax(-1)]
    surrogate = torch.zeros((), dtype=torch.float64)
    for a in range(size):
        for b in range(size):
            logprobs = torch.stack([p[0][a], p[1][a, b]])
            kl = (logprobs - torch.stack([q[0][a], q[1][a, b]])).detach()
            advantages = distillation_advantages(kl, torch.tensor([2]), 1.0, gamma)
            surrogate = surrogate + (logprobs.sum().exp().detach() * advantages * logprobs).sum()
    state = p[0].exp() if gamma else p[0].exp().detach()
    kls = (p[0].exp() * (p[0] - q[0])).sum() + (state * (p[1].exp() * (p[1] - q[1])).sum(-1)).sum()
    assert gradient(surrogate).tolist() == pytest.approx((-gradient(kls)).tolist(), abs=1e-12)


def grouped(made: Columns, of_group) -> list[float]:
    rewards = made["response_rewards"].double().tolist()
    values = [0.0] * len(rewards)
    for rows in groups(made).values():
        for row, value in zip(rows, of_group([rewards[r] for r in rows]), strict=True):
            values[row] = value
    return flat([[value] * n for value, n in zip(values, made.lengths.tolist(), strict=True)])


BASELINES = {
    "grpo": lambda r: [(x - statistics.fmean(r)) / (statistics.stdev(r) + 1e-4) for x in r],
    "group_mean": lambda r: [x - statistics.fmean(r) for x in r],
    "rloo": lambda r: [x - (sum(r) - x) / (len(r) - 1) for x in r],
}


@pytest.mark.parametrize("function", BASELINES)
def test_advantages_against_the_other_responses(function):
    made = columns()
    made = made.with_rows(response_rewards=made["scores"] * 2)
    advantages = COMPUTE[function](made, context("grpo"))["advantages"]
    assert advantages.tolist() == pytest.approx(grouped(made, BASELINES[function]), **CLOSE)


@pytest.mark.parametrize("played", [False, True])
def test_advantages_of_rewards_that_are_each_normalised(played):
    """By their weights: among them the overlong penalty, or with deviations of the batch an environment's reward."""
    made = columns()
    given = {"f": made["scores"] * 50, "g": made["scores"].flip(0), "none": made["scores"]}
    made = made.with_rows(**{f"reward/{name}": scores for name, scores in given.items()})
    functions = "{function: 'a:f', weight: 0.2}, {function: 'a:g'}, {function: 'a:none', weight: 0}"
    own = (
        ("standardDeviation: batch", "spec.environment={path: 'a:B'}")
        if played
        else ("overlongBuffer: 3, overlongPenalty: 0.7",)
    )
    reward = f"spec.reward={{functions: [{functions}]}}"
    ctx = context("grpo", f"normalize: each, {own[0]}", "spec.model.reward=null", reward, *own[1:])
    rewards = [(0.2, given["f"].tolist()), (1.0, given["g"].tolist())]
    if played:
        rewards.append((1.0, made["environment_reward"].tolist()))
    else:
        rewards.append((0.7, [overlong(length, 5, 3) for length in made.lengths.tolist()]))
    totals = [0.0] * len(made)
    for weight, scores in rewards:
        for rows in groups(made).values():
            of_group = [scores[row] for row in rows]
            deviation = statistics.stdev(scores if played else of_group) + 1e-4
            for row in rows:
                totals[row] += weight * (scores[row] - statistics.fmean(of_group)) / deviation
    deviation = statistics.stdev(totals) + 1e-4
    expected = flat([[x / deviation] * n for x, n in zip(totals, made.lengths.tolist(), strict=True)])
    assert COMPUTE["gdpo"](made, ctx)["advantages"].tolist() == pytest.approx(expected, **CLOSE)


@settings(max_examples=25)
@given(st.permutations(range(8)))
@pytest.mark.parametrize("function", BASELINES)
def test_the_order_of_responses_changes_no_advantage(function, order):
    made = columns()
    made = made.with_rows(response_rewards=made["scores"])
    straight = COMPUTE[function](made, context("grpo")).select(torch.tensor(order))
    mixed = COMPUTE[function](made.select(torch.tensor(order)), context("grpo"))
    torch.testing.assert_close(mixed["advantages"], straight["advantages"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_reinforce_pp(masked):
    """Discounted returns to go, over all tokens that count to mean 0 and deviation 1."""
    ctx = context("reinforce_pp", "gamma: 0.9")
    made = columns().with_tokens(token_rewards=columns(5)["returns"])
    if masked:
        made = COMPUTE["overlong_mask"](made, ctx)
    expected, counted = [], []
    for rewards, whole in zip(lists(made, "token_rewards"), made["finished"].tolist(), strict=True):
        following = 0.0
        part = []
        for reward in reversed(rewards):
            following = reward + 0.9 * following
            part.insert(0, following)
        expected += part
        counted += [whole or not masked] * len(part)
    own = [x for x, counts in zip(expected, counted, strict=True) if counts]
    mean, deviation = statistics.fmean(own), statistics.pstdev(own)
    white = [(x - mean) / deviation if counts else 0.0 for x, counts in zip(expected, counted, strict=True)]
    assert COMPUTE["reinforce_pp"](made, ctx)["advantages"].tolist() == pytest.approx(
        white, rel=1e-5, abs=1e-5
    )


def test_responses_that_were_cut_off_are_masked_whole():
    made = COMPUTE["overlong_mask"](columns(), context("grpo"))
    assert made.mask is not None
    expected = [[bool(f)] * n for f, n in zip(made["finished"].tolist(), made.lengths.tolist(), strict=True)]
    assert made.mask.tolist() == flat(expected)


def test_normalised_values_are_read_with_the_moments_that_the_critic_was_trained_with():
    """Values become units of reward; afterwards the moments have the returns of the step."""
    ctx = context("ppo", "normalizeValues: true, whitenAdvantages: false, gamma: 0.9, gaeLambda: 0.8")
    known = Moments()
    for seed in range(3):
        made = columns(seed).with_tokens(token_rewards=3 + columns(seed + 9)["returns"])
        values = [[v * known.deviation() + known.mean for v in part] for part in lists(made, "values")]
        returns, advantages = gae(lists(made, "token_rewards"), values, 0.9, 0.8)
        computed = COMPUTE["gae"](made, ctx)
        assert computed["values"].tolist() == pytest.approx(flat(values), rel=1e-5, abs=1e-5)
        assert computed["advantages"].tolist() == pytest.approx(advantages, rel=1e-4, abs=1e-5)
        assert computed["returns"].tolist() == pytest.approx(returns, rel=1e-4, abs=1e-5)
        known, state = update_moments(known, torch.tensor(returns)), ctx.state["values"]
        assert [state["mean"], state["variance"]] == pytest.approx([known.mean, known.variance], rel=1e-5)
        ctx = OpContext(ctx.spec, ctx.settings, state={"values": dict(state)})


def test_tokens_that_the_mask_leaves_out_do_not_enter_the_moments_of_the_returns():
    ctx = context("ppo", "normalizeValues: true, whitenAdvantages: false")
    made = columns().with_tokens(token_rewards=3 + columns(9)["returns"])
    made = made.with_tokens(mask=torch.arange(len(made["returns"])) % 3 > 0)
    computed = COMPUTE["gae"](made, ctx)
    counted = computed["returns"][made.mask].tolist()
    assert len(counted) < len(computed["returns"])
    state = ctx.state["values"]
    assert state["weight"] == len(counted)
    assert state["mean"] == pytest.approx(statistics.fmean(counted), rel=1e-5)
    assert state["variance"] == pytest.approx(statistics.pvariance(counted), rel=1e-5)


def gae(rewards, values, gamma: float, decay: float) -> tuple[list[float], list[float]]:
    returns, advantages = [], []
    for r, v in zip(rewards, values, strict=True):
        following, mine = 0.0, []
        for t in reversed(range(len(r))):
            after = v[t + 1] if t + 1 < len(v) else 0.0
            following = r[t] + gamma * after - v[t] + gamma * decay * following
            mine.insert(0, following)
        advantages += mine
        returns += [a + b for a, b in zip(mine, v, strict=True)]
    return returns, advantages

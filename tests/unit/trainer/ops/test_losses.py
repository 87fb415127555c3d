"""Losses of every algorithm against plain loops with autograd in double precision, however they are cut up."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.trainer.ops.made import LENGTHS, columns, context

from rlhf_api.graph import Compute
from rlhf_trainer.ops import COMPUTE, LOSSES, OF_TOKENS, OpContext
from rlhf_trainer.tensors.batches import MAXIMUM, MicroBatch, plan
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.updates.updates import trained_rows

BUDGETS = (1000, 12)
"""One micro-batch; and as many as there can be."""


def summed(name: str, made: Columns, ctx: OpContext, output: torch.Tensor, budget: int, group: int = 1):
    """Loss and statistics as an update adds them up; `output` has one entry a token, or a row for scores."""
    loss, total, named = LOSSES[name](made, ctx), torch.zeros(()).double(), dict[str, float]()
    for rows in plan(made.sequences.lengths.tolist(), 1, budget, group)[0]:
        micro = MicroBatch.build(made.sequences, rows, pad_token_id=0)
        value, statistics = loss(output[micro.response_index], micro)
        total = total + value
        for key, scalar in statistics.items():
            joined = max if key.endswith(MAXIMUM) else sum
            named[key] = joined((named.get(key, 0.0), float(scalar)))
    return total, named


def moved(made: Columns) -> torch.Tensor:
    """Log-probabilities and entropy of a policy after some updates: [A, 2], double."""
    draw = torch.Generator().manual_seed(8)
    logprobs = made["logprobs"].double() + 0.4 * torch.randn(len(made["logprobs"]), generator=draw).double()
    return torch.stack([logprobs, torch.rand(len(logprobs), generator=draw).double()], -1)


def by_hand(
    made: Columns,
    ctx: OpContext,
    output: torch.Tensor,
    *,
    sequences: bool,
    trust: list[float] | None = None,
) -> torch.Tensor:
    """`trust`: the importance weight of each token."""
    s, lengths = ctx.settings, made.lengths.tolist()
    high = s.clip_ratio if s.clip_ratio_high is None else s.clip_ratio_high
    counted = made.mask.tolist() if made.mask is not None else [True] * sum(lengths)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    rows = [[t for t in range(a, a + n) if counted[t]] for a, n in zip(starts, lengths, strict=True)]
    total = torch.zeros(()).double()
    for tokens in rows:
        new = [output[t, 0] for t in tokens]
        old = [made["logprobs"][t].double() if "logprobs" in made else output[t, 0].detach() for t in tokens]
        whole = math.exp(sum((p - q).item() for p, q in zip(new, old, strict=True)) / max(1, len(tokens)))
        for at, t in enumerate(tokens):
            weight = {
                "token": 1 / sum(counted),
                "sequence": 1 / (sum(bool(r) for r in rows) * len(tokens)),
                "constant": 1 / (len(rows) * ctx.spec.sampling.max_new_tokens),
            }[s.loss_aggregation]
            ratio = whole * (new[at] - new[at].detach()).exp() if sequences else (new[at] - old[at]).exp()
            advantage = float(made["advantages"][t])
            near = torch.clamp(ratio, 1 - s.clip_ratio, 1 + high)
            gain = torch.minimum(ratio * advantage, near * advantage)
            if ctx.spec.algorithm == "cispo":
                gain = float(near) * advantage * new[at]
            if s.dual_clip and advantage < 0:
                gain = torch.maximum(gain, torch.tensor(s.dual_clip * advantage).double())
            gain = gain if trust is None else trust[t] * gain
            total = total - weight * gain - weight * s.entropy_coefficient * output[t, 1]
            if s.kl_in == "loss" and s.kl_coefficient:
                difference = new[at] - float(made["reference_logprobs"][t])
                kl = difference**2 / 2 if s.kl_estimator == "k2" else (-difference).exp() - 1 + difference
                if s.kl_corrected:
                    kl = (difference if s.kl_estimator == "k1" else kl) * (new[at] - old[at]).exp()
                total = total + weight * s.kl_coefficient * kl
    return total


OWN_LOSS = {"gspo": "gspo", "cispo": "cispo"}
SETTINGS = [
    ("grpo", "klCoefficient: 0"),
    ("grpo", "klCoefficient: 0.3, klEstimator: k2, lossAggregation: sequence"),
    ("grpo", "klCoefficient: 0.3, clipRatio: 0.1, clipRatioHigh: 0.3, entropyCoefficient: 0.01"),
    ("grpo", "klCoefficient: 0, dualClip: 1.2, overlongFilter: true"),
    ("grpo", "klCoefficient: 0.3, klCorrected: true"),
    ("gspo", "clipRatio: 0.1, clipRatioHigh: 0.2, klCoefficient: 0.3, klEstimator: k1, klCorrected: true"),
    ("dr_grpo", "klCoefficient: 0.1, overlongFilter: true"),
    ("rloo", "klCoefficient: 0.1, lossAggregation: sequence, overlongFilter: true"),
    ("reinforce_pp", "clipRatio: 0.05"),
    ("gspo", "clipRatio: 0.1, clipRatioHigh: 0.2"),
    ("gspo", "clipRatio: 0.1, clipRatioHigh: 0.2, overlongFilter: true, klCoefficient: 0.2"),
    ("cispo", "clipRatioHigh: 1.0"),
    ("cispo", "clipRatio: 0.3, clipRatioHigh: 0.4, overlongFilter: true, klCoefficient: 0.2"),
]


@pytest.mark.parametrize(("older", "in_flight"), [(20, "recompute"), (40, "recompute"), (20, "keep")])
def test_with_one_update_a_step_tokens_of_earlier_weights_are_not_compared_with_the_policy(older, in_flight):
    made = Columns.join([columns(seed) for seed in range(3)])
    ctx = context("grpo", "klCoefficient: 0", f"spec.rollout={{maxStaleness: 1, inFlight: {in_flight}}}")
    output, sampled = moved(made), made["sampled_logprobs"]
    made = Columns(made.sequences, {k: v for k, v in made.tokens.items() if k != "logprobs"}, made.rows)
    versions = made["versions"].clone()
    versions[:older] = -1
    _, statistics = summed("policy", made.with_tokens(versions=versions), ctx, output, 12)
    if (older, in_flight) == (20, "recompute"):
        off = (output[older:, 0] - sampled[older:]).abs().mean()
        assert statistics["logprob_difference"] == pytest.approx(float(off), rel=1e-6)
    else:
        assert "logprob_difference" not in statistics, "of 63 few are left, or keys and values are of both"


@pytest.mark.parametrize("algorithm", ["grpo", "cispo"])
def test_a_row_that_is_divided_by_its_branches_has_the_same_loss(algorithm):
    """Of losses each of whose tokens counts alone."""
    made, ctx, name = columns(), context(algorithm, "klCoefficient: 0.3"), OWN_LOSS.get(algorithm, "policy")
    pairs, flags = list[tuple[list[int], list[int]]](), list[bool]()
    for i, prompt in enumerate(made.sequences.prompt_lengths.tolist()):
        row = made.sequences.row(i).tolist()
        response = [token for each in row[prompt:] for token in (1, each)][
            1:
        ]  # a branch at each but the first
        pairs.append((row[:prompt], response))
        flags += [place % 2 == 1 for place in range(len(response))]
    begins = torch.tensor(flags)
    branched = replace(Sequences.pack(pairs), sampled=~begins, branches=begins)
    made = Columns(branched, made.tokens, made.rows)
    expected, whole = summed(name, made, ctx, output := moved(made), 1000)
    loss, total, parts, divided = LOSSES[name](made, ctx), 0.0, Counter[str](), branched.divided(12)
    assert name in OF_TOKENS
    assert len(divided) > len(branched)
    batches = plan(divided.lengths.tolist(), 1, 12, branches=divided.branch_lengths)[0]
    for micro in (MicroBatch.build(divided, rows, pad_token_id=0) for rows in batches):
        value, statistics = loss(output[micro.response_index], micro)
        total += float(value)
        parts.update({key: float(each) for key, each in statistics.items()})
    assert total == pytest.approx(float(expected), rel=1e-9)
    assert dict(parts) == pytest.approx(whole)


@pytest.mark.parametrize("old", [True, False], ids=["before the step", "one update"])
@pytest.mark.parametrize(("algorithm", "own"), SETTINGS)
def test_policy_losses_and_their_gradients(algorithm, own, old):
    made, ctx = columns(), context(algorithm, own)
    if ctx.settings.overlong_filter:
        made = COMPUTE["overlong_mask"](made, ctx)
    if not old:
        made = Columns(made.sequences, {k: v for k, v in made.tokens.items() if k != "logprobs"}, made.rows)
    name = OWN_LOSS.get(algorithm, "policy")
    exact = moved(columns()).requires_grad_()
    expected = by_hand(made, ctx, exact, sequences=name == "gspo")
    expected.backward()
    for budget in BUDGETS:
        output = moved(columns()).requires_grad_()
        loss, statistics = summed(name, made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)
        assert statistics["entropy"] == pytest.approx(float(output[:, 1].mean()))
        if not old:  # the policy is the one that sampled, as far as arithmetic goes
            assert statistics["update_kl"] == statistics["clip_fraction"] == 0
            assert statistics["ratio_mean"] == pytest.approx(1.0, rel=1e-6)
            off = (output[:, 0] - made["sampled_logprobs"]).detach()
            assert statistics["logprob_difference"] == pytest.approx(float(off.abs().mean()), rel=1e-6)
            error = float(off.abs().exp().mean())
            assert statistics["token_mult_prob_error"] == pytest.approx(error, rel=1e-6)
            outside = ((off.exp() < 0.9) | (off.exp() > 1.1)).double().mean()
            assert statistics["ratio_outside_share"] == pytest.approx(float(outside), rel=1e-6)
            assert statistics["logprob_outliers"] == int((off.abs() > 1).sum())
            assert statistics["logprob_outlier_share"] == pytest.approx(
                float((off.abs() > 1).double().mean())
            )
            assert statistics["logprob_difference_max"] == pytest.approx(float(off.abs().max()), rel=1e-6)
            kl = float((output[:, 0] - made["reference_logprobs"]).mean())
            assert statistics["kl_mean"] == pytest.approx(kl, rel=1e-6)


@pytest.mark.parametrize("old", [True, False], ids=["before the step", "one update"])
@pytest.mark.parametrize(
    ("name", "algorithm", "own"),
    [
        *((OWN_LOSS.get(algorithm, "policy"), algorithm, own) for algorithm, own in SETTINGS),
        ("dpo", "dpo", ""),
        ("dpo", "dpo", "loss: orpo"),
        ("dpo", "online_dpo", ""),
        ("kto", "kto", ""),
        ("value", "ppo", "normalizeValues: true"),
        ("preference", "reward", ""),
        ("step_likelihood", "process_reward", ""),
        ("likelihood", "sft", ""),
    ],
)
def test_no_loss_makes_the_host_wait_for_the_gpu(name, algorithm, own, old):
    """A meta tensor has no data: whatever would copy some to the host raises."""
    made, ctx = columns(), context(algorithm, own)
    if getattr(ctx.settings, "overlong_filter", False):
        made = COMPUTE["overlong_mask"](made, ctx)
    if not old:
        made = Columns(made.sequences, {k: v for k, v in made.tokens.items() if k != "logprobs"}, made.rows)
    if name == "value" and ctx.settings.normalize_values:
        made = COMPUTE["gae"](made.with_tokens(token_rewards=made["returns"]), ctx)
    loss, rows = LOSSES[name](made, ctx), (2, 3, 6, 7)
    micro = MicroBatch.build(made.sequences, rows, pad_token_id=0)
    size = {"preference": (len(rows),), "policy": (12, 2), "gspo": (12, 2), "cispo": (12, 2)}.get(name, (12,))
    output = torch.zeros(size, device="meta", requires_grad=True)
    value, _ = loss(output, micro)
    value.backward()


def trusted(made: Columns, level: str, cap: float, mask: float) -> list[float]:
    """min(p / p_sampler, cap) of each token, or of its whole response; 0 outside 1 / mask ... mask."""
    weights: list[float] = []
    differences = made["logprobs"].double() - made["sampled_logprobs"].double()
    for part in differences.split(made.lengths.tolist()):
        whole = float(part.mean() if level == "geometric" else part.sum())
        of_tokens = part.tolist() if level == "token" else [whole] * len(part)
        ratios = [math.exp(difference) for difference in of_tokens]
        weights += [min(ratio, cap) if 1 / mask <= ratio <= mask else 0.0 for ratio in ratios]
    return weights


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_a_corrected_penalty_has_the_gradient_of_the_divergence(estimator):
    """Summed over the vocabulary with the probabilities of the policy that sampled; without, it is another."""
    draw = torch.Generator().manual_seed(4)
    logits, sampler, reference = (torch.randn(8, generator=draw).double() for _ in range(3))
    logits.requires_grad_()
    sequences = Sequences.pack([((1,), (i,)) for i in range(8)])
    q, p_old = reference.log_softmax(0), sampler.log_softmax(0)
    tokens = {"logprobs": p_old, "reference_logprobs": q, "sampled_logprobs": p_old}
    zero = {"advantages": torch.zeros(8).double(), "versions": torch.zeros(8, dtype=torch.int64)}
    made = Columns(sequences, {**tokens, **zero, "importance_weights": torch.ones(8).double()}, {})
    p = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    gradients = []
    for corrected in ("true", "false") if estimator == "k3" else ("true",):
        own = f"klCoefficient: 1, klEstimator: {estimator}, klCorrected: {corrected}"
        total = torch.zeros(()).double()
        for i in range(8):  # a minibatch of one token each, weighted by how often the sampler draws it
            part = made.select(torch.tensor([i]))
            output = torch.stack([p[i], torch.zeros(()).double()])[None]
            total = total + p_old[i].exp() * summed("policy", part, context("grpo", own), output, 1000)[0]
        gradients.append(torch.autograd.grad(total, logits, retain_graph=True)[0])
    torch.testing.assert_close(gradients[0], exact, rtol=1e-5, atol=1e-7)
    assert len(gradients) == 1 or not torch.allclose(gradients[1], exact, atol=1e-2)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ("grpo", "klCoefficient: 0.3, klEstimator: k2, entropyCoefficient: 0.01"),
        ("gspo", "clipRatio: 0.1, clipRatioHigh: 0.2, lossAggregation: sequence"),
    ],
)
def test_what_other_weights_sampled_counts_by_its_importance_and_penalties_count_whole(algorithm, own, level):
    correction = f"spec.rollout={{importance: {level}, importanceCap: 1.1, importanceMask: 1.25}}"
    ctx = context(algorithm, own, correction)
    made, name = COMPUTE["importance_weights"](columns(), ctx), "gspo" if algorithm == "gspo" else "policy"
    trust = trusted(made, level, 1.1, 1.25)
    assert 0.0 in trust
    assert 1.1 in trust
    exact = moved(made).requires_grad_()
    expected = by_hand(made, ctx, exact, sequences=name == "gspo", trust=trust)
    expected.backward()
    for budget in BUDGETS:
        output = moved(made).requires_grad_()
        loss, _ = summed(name, made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ("grpo", "klCoefficient: 0.3, entropyCoefficient: 0.01"),
        ("grpo", "klCoefficient: 0, overlongFilter: true, lossAggregation: sequence"),
        ("cispo", ""),
    ],
)
def test_only_tokens_of_high_entropy_have_a_policy_loss_and_penalties_count_whole(algorithm, own):
    ctx = context(algorithm, ", ".join(filter(None, [own, "topEntropy: 0.3"])))
    made = columns()
    if ctx.settings.overlong_filter:
        made = COMPUTE["overlong_mask"](made, ctx)
    made = COMPUTE["entropy_mask"](made, ctx)
    counted = [True] * sum(LENGTHS) if made.mask is None else made.mask.tolist()
    ranked = sorted((float(e) for e, c in zip(made["entropies"], counted, strict=True) if c), reverse=True)
    lowest = ranked[math.ceil(0.3 * len(ranked)) - 1]
    trust = [float(c and e >= lowest) for e, c in zip(made["entropies"].tolist(), counted, strict=True)]
    assert sum(trust) == math.ceil(0.3 * sum(counted))
    exact = moved(made).requires_grad_()
    expected = by_hand(made, ctx, exact, sequences=False, trust=trust)
    expected.backward()
    for budget in BUDGETS:
        output = moved(made).requires_grad_()
        loss, _ = summed(OWN_LOSS.get(algorithm, "policy"), made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize(
    "own", ["clipCov: 0.1", "klCov: 0.2", "clipCov: 0.05, klCov: 0.1, overlongFilter: true"]
)
def test_tokens_of_high_covariance_have_no_loss_or_a_penalty(algorithm, own):
    ctx = context(algorithm, f"klCoefficient: 0, {own}")
    made = columns().with_tokens(advantages=3 * columns()["advantages"])
    if ctx.settings.overlong_filter:
        made = COMPUTE["overlong_mask"](made, ctx)
    counted = [True] * sum(LENGTHS) if made.mask is None else made.mask.tolist()
    chosen = [
        node.function for node in ctx.spec.graph.nodes if isinstance(node, Compute) and "cov" in node.name
    ]
    assert chosen == [key for key, name in (("clip_cov", "clipCov"), ("kl_cov", "klCov")) if name in own]
    for name in chosen:
        assert name in ctx.spec.graph.train[0].reads
        made = COMPUTE[name](made, ctx)
    trust = [1.0] * sum(LENGTHS)
    if "clip_cov" in chosen:
        trust = [1.0 - float(t) for t in made["clip_cov"].tolist()]
        assert 0 < trust.count(0.0) <= math.ceil(ctx.settings.clip_cov * sum(counted))
    exact = moved(made).requires_grad_()
    expected = by_hand(made, ctx, exact, sequences=False, trust=trust)
    if "kl_cov" in chosen:
        penalised = made["kl_cov"].tolist()
        assert penalised.count(True) == math.ceil(ctx.settings.kl_cov * sum(counted))
        for t in (t for t, has in enumerate(penalised) if has):
            change = exact[t, 0] - float(made["logprobs"][t])
            expected = expected + trust[t] * (change.exp() - 1 - change) / sum(counted)
    expected.backward()
    for budget in BUDGETS:
        output = moved(made).requires_grad_()
        loss, _ = summed("policy", made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)


@settings(max_examples=15)
@given(st.permutations(range(8)), st.integers(1, 40))
@pytest.mark.parametrize(("algorithm", "own"), SETTINGS)
def test_order_and_micro_batches_change_no_policy_loss(algorithm, own, order, budget):
    made, ctx = columns(), context(algorithm, own)
    if ctx.settings.overlong_filter:
        made = COMPUTE["overlong_mask"](made, ctx)
    name, index = OWN_LOSS.get(algorithm, "policy"), torch.tensor(order)
    output = moved(made)
    whole, named = summed(name, made, ctx, output, BUDGETS[0])
    tokens = made.sequences.response_index(index)
    loss, others = summed(name, made.select(index), ctx, output[tokens], budget)
    assert float(loss) == pytest.approx(float(whole), rel=1e-5, abs=1e-7)
    assert others == pytest.approx(named, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "own", ["clipValue: 0.2", "clipValue: 0", "normalizeValues: true", "lossAggregation: sequence"]
)
def test_value_loss_and_its_gradient(own):
    made, ctx = columns(), context("ppo", own)
    units = {"returns": (0.0, 1.0), "values": (0.0, 1.0)}  # mean and deviation
    if ctx.settings.normalize_values:  # values were given in units of other moments
        units = {"returns": (0.5, 2.0), "values": (-1.0, 0.5)}
        ctx.state["values"] = {"weight": 10.0, "mean": 0.5, "variance": 4.0}
        made = made.with_tokens(critic_outputs=(made["values"] + 1.0) / 0.5)
    clip, lengths = ctx.settings.clip_value, made.lengths.tolist()
    exact = (made["values"].double() * 1.5 + 0.3).requires_grad_()
    expected, at = torch.zeros(()).double(), 0
    for length in lengths:
        for t in range(at, at + length):
            weight = (
                1 / sum(lengths) if ctx.settings.loss_aggregation == "token" else 1 / (len(lengths) * length)
            )
            goal, old = (float((made[n][t].double() - mean) / std) for n, (mean, std) in units.items())
            error = (exact[t] - goal) ** 2
            if clip:
                error = torch.maximum(error, (exact[t].clamp(old - clip, old + clip) - goal) ** 2)
            expected = expected + weight * error / 2
        at += length
    expected.backward()
    for budget in BUDGETS:
        output = exact.detach().clone().requires_grad_()
        loss, named = summed("value", made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)
        assert named == {}


def test_a_step_that_moves_the_moments_far_clips_no_value_before_the_critic_has_moved():
    """With returns around 50 and a critic that says 0 as yet, every token has a gradient in the first update."""
    ctx = context("ppo", "normalizeValues: true, klCoefficient: 0")
    made = columns().with_tokens(values=torch.zeros(sum(LENGTHS)))
    made = COMPUTE["gae"](made.with_tokens(token_rewards=50 + made["returns"]), ctx)
    output = torch.zeros(sum(LENGTHS), requires_grad=True)
    loss, _ = summed("value", made, ctx, output, BUDGETS[0])
    loss.backward()
    assert bool(output.grad.ne(0).all())


def test_values_of_an_earlier_batch_are_clipped_around_what_the_critic_said_then():
    """A replayed episode, or an earlier minibatch of `dynamic`: a later one has changed the moments since."""
    ctx = context("ppo", "normalizeValues: true, klCoefficient: 0")
    made = columns().with_tokens(values=torch.zeros(sum(LENGTHS)))
    made = made.with_tokens(token_rewards=50 + made["returns"])
    earlier = COMPUTE["gae"](made, ctx)
    COMPUTE["gae"](made, ctx)
    output = torch.zeros(sum(LENGTHS), requires_grad=True)
    loss, _ = summed("value", earlier, ctx, output, BUDGETS[0])
    loss.backward()
    assert bool(output.grad.ne(0).all())


def test_a_minibatch_that_the_mask_leaves_nothing_of_has_the_ratio_of_its_tokens():
    """A ratio of 0 would make `stopRatio` end the updates."""
    made, ctx = columns(), context("grpo", "klCoefficient: 0, overlongFilter: true")
    made = made.with_tokens(mask=torch.zeros(sum(LENGTHS), dtype=torch.bool))
    loss, named = summed("policy", made, ctx, moved(made), BUDGETS[0])
    ratios = (moved(made)[:, 0] - made["logprobs"]).exp()
    assert float(loss) == 0
    assert named["ratio_mean"] == pytest.approx(float(ratios.mean()), rel=1e-5)


@pytest.mark.parametrize(
    "own",
    [
        *("beta: 0.4", "beta: 0.4, labelSmoothing: 0.2, margin: 0.7", "beta: 0.4, loss: ipo"),
        *("loss: simpo, beta: 1.5, margin: 0.7", "loss: simpo, labelSmoothing: 0.1"),
        *("loss: orpo", "loss: orpo, beta: 0.3, likelihoodCoefficient: 0"),
        *("likelihoodCoefficient: 0.2", "loss: ipo, likelihoodCoefficient: 0.5"),
    ],
)
def test_losses_of_pairs_and_their_gradients(own):
    """Rows 2i are better than rows 2i + 1."""
    made, ctx = columns(), context("dpo", own)
    s, lengths = ctx.settings, made.lengths.tolist()
    beta = s.beta or {"simpo": 2.0}.get(s.loss, 0.1)
    likelihood = (
        {"orpo": 1.0}.get(s.loss, 0.0) if s.likelihood_coefficient is None else s.likelihood_coefficient
    )
    exact = moved(made)[:, 0].clone().clamp(max=-0.01).requires_grad_()
    ratios = [p.sum() for p in (exact - made["reference_logprobs"].double()).split(lengths)]
    means = [p.mean() for p in exact.split(lengths)]
    rewards = [beta * x for x in (ratios if s.loss in ("sigmoid", "ipo") else means)]
    expected = torch.zeros(()).double()
    for i in range(0, len(lengths), 2):
        h = rewards[i] - rewards[i + 1]
        if s.loss == "ipo":
            pair = (h / beta - 1 / (2 * beta)) ** 2
        elif s.loss == "orpo":
            better, worse = (m.exp() / (1 - m.exp()) for m in means[i : i + 2])
            pair = beta * (1 + worse / better).log()
        else:
            t, smooth = s.margin, s.label_smoothing
            pair = (1 - smooth) * (1 + (t - h).exp()).log() + smooth * (1 + (h - t).exp()).log()
        expected = expected + (pair - likelihood * means[i]) / 4
    expected.backward()
    margins = [float(a - b) for a, b in zip(rewards[0::2], rewards[1::2], strict=True)]
    for budget in BUDGETS:
        output = exact.detach().clone().requires_grad_()
        loss, named = summed("dpo", made, ctx, output, budget, group=2)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)
        assert named["reward_margin"] == pytest.approx(sum(margins) / 4, rel=1e-5)
        assert named["accuracy"] == sum(m > 0 for m in margins) / 4
        assert named["chosen_reward"] == pytest.approx(sum(map(float, rewards[0::2])) / 4, rel=1e-5)
        assert named["rejected_reward"] == pytest.approx(sum(map(float, rewards[1::2])) / 4, rel=1e-5)


@pytest.mark.parametrize("own", ["", "beta: 0.4, desirableWeight: 1.5", "beta: 2.0, undesirableWeight: 0.3"])
def test_losses_of_labeled_answers_and_their_gradients(own):
    """Rows without a label are those that the estimate is of."""
    made, ctx = columns(), context("kto", own)
    made = made.with_tokens(reference_logprobs=made["reference_logprobs"] - 1)
    s, beyond = ctx.settings, [5, 6, 7]
    lengths, reference = made.lengths.tolist(), made["reference_logprobs"].double()
    old = [float(p.sum()) for p in (made["logprobs"].double() - reference).split(lengths)]
    baseline = max(0.0, sum(old[i] for i in beyond) / 3)
    assert baseline > 0
    made = COMPUTE["mismatched_divergence"](made, ctx)
    assert made["kl_baseline"].tolist() == pytest.approx([baseline] * 8, rel=1e-5)
    node = ctx.spec.graph.train[0]
    trained, labels = trained_rows(node, made), [1, -1, 1, 1, -1]
    exact = moved(made)[: sum(lengths[:5]), 0].clone().requires_grad_()
    ratios = [p.sum() for p in (exact - reference[: len(exact)]).split(lengths[:5])]
    expected = torch.zeros(()).double()
    for ratio, label in zip(ratios, labels, strict=True):
        weight = s.desirable_weight if label > 0 else s.undesirable_weight
        value = weight / (1 + (-s.beta * label * (ratio - baseline)).exp())
        expected = expected + (weight - value) / 5
    expected.backward()
    means = [
        sum(s.beta * float(r) for r, y in zip(ratios, labels, strict=True) if y == label)
        / labels.count(label)
        for label in (1, -1)
    ]
    for budget in BUDGETS:
        output = exact.detach().clone().requires_grad_()
        loss, named = summed("kto", trained, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-7)
        assert named["chosen_reward"] == pytest.approx(means[0], rel=1e-5)
        assert named["rejected_reward"] == pytest.approx(means[1], rel=1e-5)
        assert named["reward_margin"] == pytest.approx(means[0] - means[1], rel=1e-5)
        assert named["kl_baseline"] == pytest.approx(baseline, rel=1e-5)


def test_the_loss_of_steps_and_its_gradient():
    """Labels at some tokens, one of them of a probability; two rows have none, as of steps that were cut off."""
    made, ctx, nothing = columns(), context("process_reward"), -1.0
    labels = [nothing, 1.0, 0.0, nothing, 0.3, 1.0] + [nothing] * 13 + [0.0, 1.0]
    made = made.with_tokens(step_label=torch.tensor(labels))
    exact = torch.randn(21, generator=torch.Generator().manual_seed(3)).double().requires_grad_()
    steps = [(exact[i], y) for i, y in enumerate(labels) if y >= 0]
    probabilities = [1 / (1 + (-score).exp()) for score, _ in steps]
    expected = torch.zeros(()).double()
    for p, (_, y) in zip(probabilities, steps, strict=True):
        expected = expected - (y * p.log() + (1 - y) * (1 - p).log()) / 6
    expected.backward()
    judged = [(float(p) > 0.5) == (y > 0.5) for p, (_, y) in zip(probabilities, steps, strict=True)]
    right, wrong = (
        [float(p) for p, (_, y) in zip(probabilities, steps, strict=True) if (y > 0.5) is kind]
        for kind in (True, False)
    )
    for budget in BUDGETS:
        output = exact.detach().clone().requires_grad_()
        loss, named = summed("step_likelihood", made, ctx, output, budget)
        loss.backward()
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-6, atol=1e-8)
        assert named["accuracy"] == pytest.approx(sum(judged) / 6)
        assert named["right_step_score"] == pytest.approx(sum(right) / 3)
        assert named["wrong_step_score"] == pytest.approx(sum(wrong) / 3)


def test_an_estimate_below_0_is_0():
    made = columns()
    low = made.with_tokens(logprobs=made["reference_logprobs"] - 1)
    assert COMPUTE["mismatched_divergence"](low, context("kto"))["kl_baseline"].tolist() == [0.0] * 8


@pytest.mark.parametrize(("centering", "margins"), [(0.0, None), (0.3, None), (0.3, (0.5, 3.0, 0.0, -1.0))])
def test_the_loss_of_a_reward_model_and_its_gradient(centering, margins):
    """Scores of rows 2i and 2i + 1, a micro-batch of any size."""
    made, ctx = columns(), context("reward", f"centering: {centering}")
    if margins:
        made = made.with_rows(margin=torch.tensor(margins).repeat_interleave(2))
    exact = torch.randn(8, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
    expected = torch.zeros(()).double()
    for better, worse, margin in zip(exact[0::2], exact[1::2], margins or (0.0,) * 4, strict=True):
        odds = (worse - better + margin).exp()
        expected = expected + ((1 + odds).log() + centering * (better + worse) ** 2) / 4
    expected.backward()
    for budget in BUDGETS:
        scores = exact.detach().clone().requires_grad_()
        loss, total = LOSSES["preference"](made, ctx), torch.zeros(()).double()
        for rows in plan(made.sequences.lengths.tolist(), 1, budget, 2)[0]:
            total = total + loss(scores[rows], MicroBatch.build(made.sequences, rows, 0))[0]
        total.backward()
        assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
        torch.testing.assert_close(scores.grad, exact.grad, rtol=1e-6, atol=1e-8)

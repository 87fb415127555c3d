"""Masked and constant aggregation against plain loops, in any order and any cut into micro-batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.groups import group_standardized
from rlhf_trainer.maths.kl import kl_estimate
from rlhf_trainer.maths.losses import clipped_surrogate, ratio, sequence_ratio, token_weights
from rlhf_trainer.tensors.ragged import to_tokens

aggregation = st.sampled_from(["token", "sequence", "constant"])
masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=7)


def weights_of(batch: list, aggregation: str, masked: bool = True) -> torch.Tensor:
    mask = torch.tensor([counts for sequence in batch for counts in sequence])
    lengths = torch.tensor([len(sequence) for sequence in batch])
    return token_weights(lengths, aggregation, mask if masked else None, constant=8)


def test_by_hand():
    lengths = torch.tensor([1, 3, 2])
    mask = torch.tensor([True, True, False, True, False, False])
    third, quarter = 1 / 3, 1 / 4
    torch.testing.assert_close(
        token_weights(lengths, "token", mask), torch.tensor([third, third, 0, third, 0, 0])
    )
    # the last sequence has nothing to count: the mean is over two
    torch.testing.assert_close(
        token_weights(lengths, "sequence", mask), torch.tensor([1 / 2, quarter, 0, quarter, 0, 0])
    )
    # and over all three where the divisor is to be the same in every step
    torch.testing.assert_close(
        token_weights(lengths, "constant", mask, constant=4),
        torch.tensor([1 / 12, 1 / 12, 0, 1 / 12, 0, 0]),
    )
    torch.testing.assert_close(token_weights(lengths, "constant", constant=4), torch.full((6,), 1 / 12))


@given(masks, aggregation, st.booleans(), st.randoms(use_true_random=False))
def test_weighted_sum_is_the_mean_it_names_however_the_batch_is_ordered_or_cut(
    batch, aggregation, masked, random
):
    losses = [[random.uniform(-2, 2) for _ in sequence] for sequence in batch]
    counted = [
        [x for x, counts in zip(loss, sequence, strict=True) if counts or not masked]
        for loss, sequence in zip(losses, batch, strict=True)
    ]
    flat, left = [x for sequence in counted for x in sequence], [sequence for sequence in counted if sequence]
    if aggregation == "token":
        expected = sum(flat) / len(flat) if flat else 0.0
    elif aggregation == "sequence":
        expected = sum(sum(sequence) / len(sequence) for sequence in left) / len(left) if left else 0.0
    else:
        expected = sum(sum(sequence) for sequence in counted) / (len(batch) * 8)

    order = random.sample(range(len(batch)), len(batch))
    weights = weights_of([batch[i] for i in order], aggregation, masked)
    packed = torch.tensor([x for i in order for x in losses[i]])
    assert weights.dtype == torch.float32
    cut = sum(len(batch[i]) for i in order[: random.randint(0, len(order))])
    parts = (weights[:cut] * packed[:cut]).sum() + (weights[cut:] * packed[cut:]).sum()
    assert float(parts) == pytest.approx(expected, abs=1e-5)


@given(masks, aggregation)
def test_a_mask_that_counts_all_changes_no_bit(batch, aggregation):
    everything = [[True] * len(sequence) for sequence in batch]
    assert torch.equal(weights_of(everything, aggregation), weights_of(everything, aggregation, masked=False))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_without_mask_and_constant_bits_are_those_of_ppo(lengths):
    tensor = torch.tensor(lengths)
    by_token = torch.repeat_interleave(torch.full(tensor.shape, 1.0) / tensor.sum(), tensor)
    by_sequence = torch.repeat_interleave(1.0 / (len(lengths) * tensor), tensor)
    assert torch.equal(token_weights(tensor, "token"), by_token)
    assert torch.equal(token_weights(tensor, "sequence"), by_sequence)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_nothing_to_count_weighs_nothing(aggregation):
    assert weights_of([[False], [False, False]], aggregation).tolist() == [0.0, 0.0, 0.0]


def grpo_by_loops(groups, scores, logprobs, old, reference, beta, clip) -> float:
    """Eq. 3 of Shao et al. 2024 for each group as it stands, then the mean over groups of the same size."""
    objectives = []
    for group in sorted(set(groups)):
        own = [i for i, g in enumerate(groups) if g == group]
        mean = sum(scores[i] for i in own) / len(own)
        deviation = (sum((scores[i] - mean) ** 2 for i in own) / (len(own) - 1)) ** 0.5
        for i in own:
            advantage = (scores[i] - mean) / (deviation + 1e-4)
            terms = []
            for new, before, q in zip(logprobs[i], old[i], reference[i], strict=True):
                r = (new - before).exp()
                surrogate = torch.minimum(r * advantage, r.clamp(1 - clip, 1 + clip) * advantage)
                terms.append(surrogate - beta * ((q - new).exp() - (q - new) - 1))
            objectives.append(torch.stack(terms).mean())
    return -torch.stack(objectives).mean()


@given(st.integers(2, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_grpo_put_together_is_its_equation_3(size, prompts, random):
    groups = random.sample([p for p in range(prompts) for _ in range(size)], prompts * size)
    scores = [random.uniform(-1, 1) for _ in groups]
    lengths = torch.tensor([random.randint(1, 6) for _ in groups])
    generator = torch.Generator().manual_seed(random.randint(0, 2**31))
    new, old, reference = -torch.rand(3, int(lengths.sum()), generator=generator, dtype=torch.float64)
    split = [x.split(lengths.tolist()) for x in (new, old, reference)]
    expected = float(grpo_by_loops(groups, scores, *split, beta=0.1, clip=0.2))

    advantages = group_standardized(torch.tensor(scores, dtype=torch.float64), torch.tensor(groups))
    loss = clipped_surrogate(ratio(new, old), to_tokens(advantages, lengths), 0.2, 0.2)
    loss = loss + 0.1 * kl_estimate(new, reference, "k3")
    assert float((token_weights(lengths, "sequence") * loss).sum()) == pytest.approx(expected, abs=1e-6)


@given(masks, aggregation, st.randoms(use_true_random=False))
def test_micro_batches_of_whole_sequences_add_up_to_the_minibatch_for_gspo(batch, aggregation, random):
    order = random.sample(range(len(batch)), len(batch))
    batch = [batch[i] for i in order]
    lengths = torch.tensor([len(sequence) for sequence in batch])
    mask = torch.tensor([counts for sequence in batch for counts in sequence])
    generator = torch.Generator().manual_seed(random.randint(0, 2**31))
    new, old, advantages = torch.randn(3, int(lengths.sum()), generator=generator, dtype=torch.float64)
    weights = weights_of(batch, aggregation)

    def loss(rows: slice, tokens: slice) -> float:
        s = sequence_ratio(new[tokens], old[tokens], lengths[rows], mask[tokens])
        return float((weights[tokens] * clipped_surrogate(s, advantages[tokens], 0.2, 0.3)).sum())

    cut = random.randint(0, len(batch))
    at = int(lengths[:cut].sum())
    whole = loss(slice(None), slice(None))
    parts = loss(slice(cut), slice(at)) + loss(slice(cut, None), slice(at, None))
    assert parts == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("constant", [None, 0])
def test_constant_aggregation_without_a_constant(constant):
    with pytest.raises(ValueError, match=f"number of tokens above 0; got {constant}"):
        token_weights(torch.tensor([1]), "constant", constant=constant)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_masks_that_do_not_fit(aggregation):
    with pytest.raises(ValueError, match="cannot hold 2 responses of 3 tokens"):
        token_weights(torch.tensor([1, 2]), aggregation, torch.ones(2, dtype=torch.bool), constant=1)
    with pytest.raises(ValueError, match=r"bool; got torch\.float32"):
        token_weights(torch.tensor([1, 2]), aggregation, torch.ones(3), constant=1)

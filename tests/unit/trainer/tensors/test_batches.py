"""The plan keeps its promises, and no padding or batching changes what is read from a model."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Qwen2Config
from transformers import Qwen2ForTokenClassification as Critic

from rlhf_trainer.maths.logprobs import CHUNK_ELEMENTS
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values, sequence_scores
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.tensors.batches import MicroBatch, plan
from rlhf_trainer.tensors.records import Sequences

VOCABULARY = 128
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_labels": 1,
    "initializer_range": 0.2,
}

token = st.integers(0, VOCABULARY - 1)
pairs = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=9), st.lists(token, min_size=1, max_size=9)),
    min_size=1,
    max_size=8,
)
few = settings(max_examples=15)


@given(st.lists(st.integers(2, 60), max_size=40), st.integers(1, 4), st.integers(1, 200), st.integers(1, 3))
def test_plan_deals_every_row_once_within_the_budget(lengths, ranks, budget, group):
    lengths = lengths[: len(lengths) // group * group]
    batches = plan(lengths, ranks, budget, group)
    assert sorted(row for rank in batches for rows in rank for row in rows) == list(range(len(lengths)))
    assert len(batches) == ranks
    assert len({len(rank) for rank in batches}) == 1
    for rows in (rows for rank in batches for rows in rank):
        assert rows[::group] == [row // group * group for row in rows[::group]]
        assert [row - rows[i // group * group] for i, row in enumerate(rows)] == [
            i % group for i in range(len(rows))
        ]
        assert len(rows) <= group or len(rows) * max(lengths[row] for row in rows) <= budget
    loads = [sum(lengths[row] for rows in rank for row in rows) for rank in batches]
    largest = max((sum(lengths[i : i + group]) for i in range(0, len(lengths), group)), default=0)
    assert max(loads) - min(loads) <= largest


@given(st.lists(st.integers(2, 60), max_size=40), st.integers(1, 4), st.integers(1, 200), st.integers(1, 2))
def test_packed_micro_batches_are_filled_first_fit_longest_first(lengths, ranks, budget, group):
    lengths = lengths[: len(lengths) // group * group]
    dealt = plan(lengths, ranks, budget, group, packed=True)
    assert sorted(row for rank in dealt for rows in rank for row in rows) == list(range(len(lengths)))
    for rank in dealt:
        mine = sorted({row // group for rows in rank for row in rows})
        mine.sort(key=lambda g: -max(lengths[g * group : (g + 1) * group]))
        plain: list[list[int]] = [[] for _ in rank]
        for g in mine:
            rows = list(range(g * group, (g + 1) * group))
            fits = (m for m in plain if not m or sum(lengths[row] for row in [*m, *rows]) <= budget)
            next(fits).extend(rows)
        assert rank == plain


def test_plan_pads_little_and_leaves_no_rank_without_its_turn():
    lengths = [10, 50] * 20
    (batches,) = plan(lengths, 1, 200)
    padded = sum(len(rows) * max(lengths[row] for row in rows) for rows in batches)
    assert padded <= 1.1 * sum(lengths)
    assert plan([5], 2, 100) == [[[0]], [[]]]
    assert plan([], 2, 100) == [[], []]


def as_they_come(lengths, ranks, budget, size):
    """Equal numbers of rows for each rank, cut into micro-batches in their order."""
    share, dealt = len(lengths) // ranks, []
    for rank in range(ranks):
        mine = []
        for row in range(rank * share, (rank + 1) * share):
            if mine and size([*mine[-1], row]) <= budget:
                mine[-1].append(row)
            else:
                mine.append([row])
        dealt.append(mine)
    return [mine + [[]] * (max(map(len, dealt)) - len(mine)) for mine in dealt]


@pytest.mark.parametrize(
    ("packed", "before", "after"), [(False, (42, 15, 23), (12, 0, 3)), (True, (0, 15, 17), (0, 0, 0))]
)
def test_the_plan_balances_ranks_and_micro_batches_as_the_docs_say(packed, before, after):
    draw, ranks, budget = random.Random(0), 4, 4096
    lengths = [min(2048, max(16, int(draw.lognormvariate(5.8, 0.9)))) for _ in range(256)]

    def size(rows):
        return (
            sum(lengths[r] for r in rows)
            if packed
            else len(rows) * max((lengths[r] for r in rows), default=0)
        )

    def figures(dealt):
        """Percent of padding; of the fullest rank over the mean; of a rank's time, in tokens, spent in waiting."""
        whole = sum(size(rows) for mine in dealt for rows in mine)
        loads = [sum(lengths[row] for rows in mine for row in rows) for mine in dealt]
        together = sum(max(map(size, at_once)) for at_once in zip(*dealt, strict=True))
        shares = 1 - sum(lengths) / whole, max(loads) / (sum(loads) / ranks) - 1, 1 - whole / ranks / together
        return tuple(round(100 * share) for share in shares)

    assert figures(as_they_come(lengths, ranks, budget, size)) == before
    assert figures(plan(lengths, ranks, budget, packed=packed)) == after


@given(pairs, st.data())
def test_a_micro_batch_points_at_the_answers(pairs, data):
    sequences = Sequences.pack(pairs)
    rows = data.draw(st.permutations(range(len(pairs))))[: data.draw(st.integers(1, len(pairs)))]
    micro = MicroBatch.build(sequences, rows, pad_token_id=3)
    answers = [token for row in rows for token in pairs[row][1]]
    assert micro.input_ids[micro.response_row, micro.response_column].tolist() == answers
    everything = torch.tensor([token for _, answer in pairs for token in answer])
    assert everything[micro.response_index].tolist() == answers
    for line, row in zip(micro.input_ids, rows, strict=True):
        whole = [*pairs[row][0], *pairs[row][1]]
        assert line.tolist() == whole + [micro.pad_token_id] * (len(line) - len(whole))
        assert micro.pad_token_id != whole[-1]


def test_an_empty_micro_batch_still_has_an_input_and_reads_nothing():
    micro = MicroBatch.build(Sequences.pack([([7, 8], [9])]), [], pad_token_id=0)
    assert micro.input_ids.tolist() == [[7]]
    logits = torch.zeros(1, 1, VOCABULARY, requires_grad=True)
    output = ResponseLogprobs()(logits, micro)
    assert output.shape == (0,)
    output.sum().backward()
    assert logits.grad.abs().sum() == 0
    assert response_values(logits[..., :1], micro).shape == (0,)
    assert sequence_scores(logits[:, 0, :1], micro).shape == (0,)


def test_logprobs_are_a_float64_log_softmax_also_across_chunks_and_backwards(monkeypatch):
    chunk = 256
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", chunk * VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    length = chunk + 9
    tokens = torch.randint(VOCABULARY, (length + 2,), generator=generator)
    sequences = Sequences.pack([(tokens[:2].tolist(), tokens[2:].tolist())])
    logits = 5 * torch.randn(1, length + 2, VOCABULARY, generator=generator)
    weights = torch.randn(length, generator=generator)
    exact = logits.double().requires_grad_()
    logits.requires_grad_()
    picked = torch.log_softmax(exact[0, 1:-1] / 0.7, -1)[torch.arange(length), tokens[2:]]
    (picked * weights).sum().backward()
    output = ResponseLogprobs(0.7)(logits, MicroBatch.build(sequences, [0], 0))
    (output * weights).sum().backward()
    torch.testing.assert_close(output.double(), picked, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=0, atol=1e-6)


def model(kind: type, config: type = LlamaConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(config(**SHAPE, pad_token_id=None)).eval()


@few
@given(pairs, st.integers(1, 80), st.randoms(use_true_random=False))
def test_neither_padding_nor_order_changes_what_is_inferred(pairs, budget, random):
    sequences = Sequences.pack(pairs)
    order = torch.tensor(random.sample(range(len(pairs)), len(pairs)))
    shuffled = sequences.select(order)
    for network, read in (
        (POLICY, ResponseLogprobs()),
        (CRITIC, response_values),
        (REWARD, sequence_scores),
    ):
        scores = read is sequence_scores
        sizes = torch.ones(len(pairs), dtype=torch.int64) if scores else sequences.response_lengths
        alone = infer(Forward(network, 1, 0), sequences, read, sizes)
        index = order if scores else sequences.response_index(order)
        together = infer(Forward(network, budget, 5), shuffled, read, sizes[order])
        torch.testing.assert_close(together, alone[index], rtol=0, atol=2e-5)


def test_scores_are_right_where_padding_and_end_are_the_same_token():
    end = 1
    rows = [[5, 6, end], [9, end], [4, 8, 3, 2], [7, end, end, 3, end]]
    sequences = Sequences.pack([(row[:1], row[1:]) for row in rows])
    together = infer(Forward(REWARD, 99, end), sequences, sequence_scores, torch.ones(4).long())
    with torch.no_grad():
        alone = [REWARD(input_ids=torch.tensor([row])).logits[0, 0] for row in rows]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-5)
    assert REWARD.config.pad_token_id is None  # left as it was


POLICY = model(LlamaForCausalLM)
CRITIC = model(Critic, Qwen2Config)
REWARD = model(LlamaForSequenceClassification)

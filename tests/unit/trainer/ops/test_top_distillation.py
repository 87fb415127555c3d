"""A student's divergence over its teacher's most probable tokens: loss, gradient, metrics, and how rows are cut up."""

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.trainer.ops.made import LENGTHS, columns, context
from tests.unit.trainer.ops.test_losses import BUDGETS, by_hand, moved, summed
from transformers import LlamaForCausalLM

from rlhf_api.graph import REFERENCE_TOP
from rlhf_trainer.maths.outputs import ResponseLogprobs, TopLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.forward.response_head import install
from rlhf_trainer.ops import LOSSES, train_output_fn
from rlhf_trainer.tensors.batches import plan
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.sampling_mask import LEFT_OUT
from rlhf_trainer.tensors.top_tokens import is_valid, known_tokens, top_ids, top_logprobs_of

K, VOCABULARY = 3, 11
TOP = f"teacherTopK: {K}"


def compared() -> tuple[Columns, torch.Tensor]:
    """Columns with a teacher's top tokens, and what a student would read: [A, 2 + K], double."""
    made, draw = columns(), torch.Generator().manual_seed(5)
    teacher, student = (torch.randn(sum(LENGTHS), VOCABULARY, generator=draw).log_softmax(-1) for _ in (0, 1))
    values, ids = teacher.topk(K)
    values[4, 1:], ids[4, 1:] = LEFT_OUT, 0  # one place has one token
    made = made.with_tokens(**{REFERENCE_TOP: torch.cat([values, ids.float()], -1)})
    tokens = {name: column for name, column in made.tokens.items() if name != "reference_logprobs"}
    output = torch.cat([moved(columns()), student.double().gather(-1, ids)], -1)
    return Columns(made.sequences, tokens, made.rows), output


def divergence(teacher: torch.Tensor, student: torch.Tensor, beta: float) -> torch.Tensor:
    there = teacher > LEFT_OUT / 2
    p, q = teacher[there].double().exp(), student[there].exp()
    p, q = torch.cat([p, 1 - p.sum()[None]]), torch.cat([q, 1 - q.sum()[None]])
    m = beta * p + (1 - beta) * q
    if beta in (0, 1):
        return (q * (q / p).log()).sum() if beta else (p * (p / q).log()).sum()
    return beta * (p * (p / m).log()).sum() + (1 - beta) * (q * (q / m).log()).sum()


@pytest.mark.parametrize(
    ("own", "beta"),
    [
        (TOP, 1.0),
        (f"{TOP}, beta: 0, klCoefficient: 0.3", 0.0),
        (f"{TOP}, beta: 0.4, lossAggregation: sequence", 0.4),
        (f"{TOP}, beta: 0.9, overlongFilter: true, entropyCoefficient: 0.1", 0.9),
    ],
)
def test_the_divergence_is_added_to_the_policy_loss(own, beta):
    made, ctx = compared()[0], context("distillation", own)
    if ctx.settings.overlong_filter:
        made = made.with_tokens(mask=made["finished"].repeat_interleave(made.lengths))
    exact = compared()[1].requires_grad_()
    # By hand without the estimate of the penalty, which a job without top tokens would have.
    expected = by_hand(made, ctx, exact, sequences=False)
    teacher, counted = top_logprobs_of(made[REFERENCE_TOP]), [True] * sum(LENGTHS)
    counted = counted if made.mask is None else made.mask.tolist()
    by_token = [divergence(*rows, beta) for rows in zip(teacher, exact[:, 2:], strict=True)]
    at = 0
    for length in LENGTHS:
        rows = sum(any(counted[a : a + n]) for a, n in spans())
        for t in range(at, at + length):
            weight = 1 / sum(counted) if ctx.settings.loss_aggregation == "token" else 1 / (rows * length)
            expected = expected + counted[t] * weight * ctx.settings.kl_coefficient * by_token[t]
        at += length
    expected.backward()
    reverse = [float(divergence(*rows, 1.0)) for rows in zip(teacher, exact[:, 2:].detach(), strict=True)]
    for budget in BUDGETS:
        output = compared()[1].requires_grad_()
        loss, statistics = summed("policy", made, ctx, output, budget)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
        torch.testing.assert_close(output.grad, exact.grad, rtol=1e-5, atol=1e-6)
        assert statistics["kl_mean"] == pytest.approx(sum(reverse) / len(reverse), rel=1e-5)


def test_the_divergence_from_each_teacher_is_the_mean_over_its_own_rows():
    teachers = ", ".join(f"{{name: {name}, model: {name}}}" for name in "abc")
    made, output = compared()
    numbers = torch.tensor([0.0, 1.0] * (len(LENGTHS) // 2))
    given = (f"spec.distillation.teachers=[{teachers}]", "spec.model={policy: p}")
    ctx = context("distillation", TOP, *given)
    values = top_logprobs_of(made[REFERENCE_TOP])
    each = [float(divergence(*rows, 1.0)) for rows in zip(values, output[:, 2:], strict=True)]
    for budget in BUDGETS:
        _, statistics = summed("policy", made.with_rows(teacher=numbers), ctx, output, budget)
        for number, name in enumerate("ab"):
            own = [
                kl
                for (at, n), of in zip(spans(), numbers, strict=True)
                for kl in each[at : at + n]
                if of == number
            ]
            assert statistics[f"teacher_{name}_kl_mean"] == pytest.approx(sum(own) / len(own), rel=1e-5)
        assert "teacher_c_kl_mean" not in statistics, "it has no rows here"


def test_given_responses_have_a_ratio_of_1_whatever_stands_for_a_sampler():
    """The sampler's log-probabilities are the old ones, with 0 for tokens that nobody sampled."""
    made, output = compared()
    ctx, given = context("distillation", TOP), torch.tensor([True, False] * 4)
    tokens = given.repeat_interleave(made.lengths)
    advantages = torch.zeros(sum(LENGTHS))
    known = made.with_tokens(
        logprobs=torch.where(tokens, output[:, 0].float(), made["logprobs"]), advantages=advantages
    )
    unknown = known.with_tokens(logprobs=known["logprobs"].masked_fill(tokens, -100.0))
    expected = summed("policy", known, ctx, output, BUDGETS[0])
    loss, statistics = summed("policy", unknown.with_rows(given=given.float()), ctx, output, BUDGETS[0])
    assert float(loss) == pytest.approx(float(expected[0]))
    assert statistics == pytest.approx(expected[1], abs=1e-6)
    assert statistics["ratio_mean"] < 5


def spans() -> list[tuple[int, int]]:
    return [(sum(LENGTHS[:i]), n) for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[LlamaForCausalLM]:
    """Student and teacher."""
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"model{seed}")
        tiny_model(folder, tie=False, seed=seed)
        made.append(LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").eval())
    return made


@pytest.mark.parametrize("head", [False, True], ids=["logits", "response head"])
def test_packing_ranks_and_micro_batches_change_neither_the_loss_nor_its_gradient(models, head):
    """Through real models: the teacher's tokens reach the place of the student's in however rows are cut up."""
    student, teacher = models
    if head:
        install(student)
        install(teacher)
    ctx, made = context("distillation", f"{TOP}, beta: 0.3"), columns()
    sizes = made.lengths
    top = infer(Forward(teacher, 12, 0), made.sequences, TopLogprobs(count=K), sizes)
    own = infer(Forward(teacher, 1000, 0), made.sequences, ResponseLogprobs(), sizes)
    assert top.shape == (int(sizes.sum()), 2 * K)
    every = infer(Forward(teacher, 12, 0), made.sequences, TopLogprobs(count=258), sizes)
    torch.testing.assert_close(every[:, :K], top[:, :K], atol=1e-5, rtol=0)
    given = top_logprobs_of(every)[top_ids(every) == 2]  # the token of every response
    torch.testing.assert_close(given, own, atol=1e-5, rtol=0)
    made = made.with_tokens(**{REFERENCE_TOP: top, "advantages": torch.zeros(len(own))})
    node = context("distillation", TOP).spec.graph.train[0]
    results = []
    for budget, ranks, packed in ((1000, 1, False), (12, 2, False), (16, 3, True)):
        forward = Forward.choose(student, budget, 0, "packed" if packed else "padded")
        loss, read = LOSSES["policy"](made, ctx), train_output_fn(node, ctx.spec, made)
        student.zero_grad()
        total = torch.zeros(())
        for micro_batches in plan(made.sequences.lengths.tolist(), ranks, budget, packed=packed):
            for rows in micro_batches:
                micro = forward.build(made.sequences, rows)
                value, _ = loss(forward(micro, read), micro)
                total = total + value
        total.backward()
        results.append((float(total), student.model.embed_tokens.weight.grad.clone()))
    for value, gradient in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-5)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-4, atol=1e-6)


def test_tokens_that_the_policy_does_not_have_are_left_to_the_rest():
    top = torch.tensor([[-0.1, -3.0, LEFT_OUT, 5.0, 300.0, 7.0]])
    assert known_tokens(top, 258).tolist()[0] == pytest.approx([-0.1, LEFT_OUT, LEFT_OUT, 5.0, 0.0, 0.0])
    assert len(byte_tokenizer()) >= 257


@pytest.mark.parametrize(
    "row", [[-0.1, 1.5, 0.0, 1.0], [-0.1, -3.0, -1.0, 2.0], [-0.1, -3.0, 0.5, 2.0]]
)  # probability above 1; no ids
def test_numbers_that_are_no_top_tokens_are_noticed(row):
    assert not is_valid(torch.tensor([row]))
    assert is_valid(torch.tensor([[-0.1, -3.0, 0.0, 2.0]]))

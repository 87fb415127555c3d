"""A user's own operations: each mistake ends the job with one error that names the function and the line."""

import re
from pathlib import Path

import pytest
import torch
from tests.unit.trainer.ops.made import columns, context

from rlhf_api.algorithms.policy_gradient import PolicyGradient
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import Frozen
from rlhf_api.graph import POLICY, SEQUENCES, Compute, Dataset, Graph, Train
from rlhf_trainer.ops import OpContext, check, compute_fn, loss_fn, output_fn
from rlhf_trainer.tensors.batches import MicroBatch

FUNCTIONS = """
import json

import torch

def good(columns, ctx):
    ctx.state["seen"] = len(columns)
    return columns.with_rows(own=torch.ones(len(columns)))

def nothing(columns, ctx):
    columns.with_rows(own=torch.ones(len(columns)))

def reads_what_is_not_there(columns, ctx):
    return columns.with_rows(own=columns["owns"])

def wrong_size(columns, ctx):
    return columns.with_rows(own=torch.ones(3))

def a_list(columns, ctx):
    return columns.with_rows(own=[1.0] * len(columns))

def of_a_library(columns, ctx):
    return columns.with_rows(own=json.loads("{"))

def fewer(columns, ctx):
    return columns.select(torch.arange(2))

def whole_numbers(columns, ctx):
    return columns.with_rows(own=torch.arange(len(columns)))

def keeps_a_tensor(columns, ctx):
    ctx.state["mean"] = columns["scores"].mean()
    return good(columns, ctx)

def one_parameter(columns):
    return columns

def the_machine(columns, ctx):
    raise ConnectionError("the judge is away")

def likelihood(columns, ctx):
    return lambda logprobs, micro: (-logprobs.sum(), {"count": 3})

def no_function(columns, ctx):
    return columns["scores"].sum()

def loss_alone(columns, ctx):
    return lambda logprobs, micro: -logprobs.sum()

def of_each_token(columns, ctx):
    return lambda logprobs, micro: (-logprobs, {})

def vector_beside(columns, ctx):
    return lambda logprobs, micro: (-logprobs.sum(), {"share": logprobs})

def detached(columns, ctx):
    return lambda logprobs, micro: (-logprobs.detach().sum(), {})

def nothing_to_train_on(columns, ctx):
    return lambda logprobs, micro: (torch.zeros(()), {})

def raises(columns, ctx):
    def loss(logprobs, micro):
        raise KeyError("weight")
    return loss

def no_values(logits, micro):
    return logits.tolist()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "operations_of_this_test.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)


def named(function: str) -> str:
    return f"operations_of_this_test:{function}"


def line_of(text: str) -> str:
    lines = FUNCTIONS.splitlines()
    return f"operations_of_this_test.py:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def refused(call, *parts: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        call()
    (problem,) = caught.value.problems
    assert problem.where == "spec.algorithm"
    for part in parts:
        assert part in problem.message


def test_what_is_right_computes():
    ctx = context("grpo")
    assert torch.equal(
        compute_fn(named("good"), context("grpo").spec)(columns(), ctx)["own"], torch.ones(len(columns()))
    )
    logprobs = torch.ones(4, requires_grad=True)
    loss, numbers = loss_fn(named("likelihood"), context("grpo").spec)(columns(), ctx)(logprobs, None)
    assert (loss.item(), numbers["count"].item()) == (-4, 3)
    loss, _ = loss_fn(named("nothing_to_train_on"), context("grpo").spec)(columns(), ctx)(logprobs, None)
    assert float(loss) == 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nothing", ["returned a NoneType, not Columns"]),
        ("reads_what_is_not_there", ["raised MissingColumn: there is no column 'owns'", 'columns["owns"]']),
        (
            "wrong_size",
            ["column 'own' has shape (3,); it needs one entry for each of 8 sequences", "ones(3)"],
        ),
        ("a_list", ["column 'own' is a list; make a tensor of it", "[1.0]"]),
        ("of_a_library", ["raised JSONDecodeError", "json.loads"]),
        ("fewer", ["returned columns of 2 other sequences than the 8 it was given"]),
        ("whole_numbers", ["wrote column 'own' as torch.int64 on cpu; columns must be float32 on the CPU"]),
        ("keeps_a_tensor", ["put a value into ctx.state that JSON", "Tensor"]),
    ],
)
def test_a_compute_function_that_is_wrong(function, expected):
    compute = compute_fn(named(function), context("grpo").spec)
    message, *text = expected
    refused(
        lambda: compute(columns(), context("grpo")), f"'{named(function)}' ", message, *map(line_of, text)
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("no_function", ["returned a Tensor, not a function (output, micro) of each micro-batch"]),
        ("loss_alone", ["returned a Tensor, not (loss, {name: number})"]),
        ("of_each_token", ["returned a loss of shape (4,); sum it up"]),
        ("vector_beside", ["returned a Tensor of shape (4,) as 'share'"]),
        ("detached", ["returned a loss of -4 without a gradient"]),
        ("raises", ["raised KeyError: 'weight'", 'KeyError("weight")']),
    ],
)
def test_a_loss_that_is_wrong(function, expected):
    def trained() -> None:
        loss_fn(named(function), context("grpo").spec)(columns(), context("grpo"))(
            torch.ones(4, requires_grad=True), None
        )

    message, *text = expected
    refused(trained, f"'{named(function)}' ", message, *map(line_of, text))


def test_an_output_that_is_no_tensor():
    output = output_fn(named("no_values"), context("grpo").spec)
    refused(lambda: output(torch.ones(2, 3), None), f"'{named('no_values')}' returned a list, not a tensor")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Frozen(), "'policy' raised AttributeError: 'Frozen' object has no attribute 'clip_ratio'"),
        (PolicyGradient(), "'policy' raised ValueError: too many values to unpack (expected 2)"),
    ],
    ids=["settings that it does not know", "an output without entropies"],
)
def test_a_loss_of_ours_in_an_algorithm_that_does_not_give_what_it_reads(settings, message):
    spec = context("grpo").spec.model_copy(update={"algorithm": "own:ALGORITHM"})
    ctx = OpContext(spec, settings)

    def trained() -> None:
        given = columns()
        sequences = given.sequences
        micro = MicroBatch.build(sequences, range(len(sequences)), 0)
        loss_fn("policy", spec)(given, ctx)(torch.zeros(int(sequences.response_lengths.sum())), micro)

    refused(trained, message)


def test_errors_of_the_machine_leave_the_process_to_be_started_again():
    with pytest.raises(ConnectionError):
        compute_fn(named("the_machine"), context("grpo").spec)(columns(), context("grpo"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": named("good")}, ""),
        (
            {"function": named("one_parameter")},
            "has the parameters (columns); it is called with (columns, ctx)",
        ),
        ({"function": named("absent")}, "cannot be imported: AttributeError"),
        ({"loss": "likelihod"}, "the graph names 'likelihod', which is neither one of likelihood, "),
        ({"output": "logprob"}, "the graph names 'logprob', which is neither one of logprobs, "),
    ],
)
def test_all_operations_are_looked_up_before_a_model_is_loaded(change, message):
    train = {"loss": "likelihood", "output": "logprobs"} | {
        k: v for k, v in change.items() if k != "function"
    }
    function = change.get("function", named("good"))
    own = Compute(name="own", function=function, reads=(SEQUENCES,), writes=("own",))
    last = Train(name="train", model=POLICY, reads=("own",), **train)
    graph, spec = Graph((Dataset(rows="responses"), own, last)), context("sft").spec
    if not message:
        check(graph, spec)
        return
    with pytest.raises(InvalidJob, match=re.escape(message)):
        check(graph, spec)

"""The executor: calls of roles go on beside local nodes, rank 0's order is everybody's, and errors name the node."""

import json
import threading

import pytest
import torch
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.graph.specs import spec_of

from rlhf_api.algorithms import settings_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.graph import POLICY, REFERENCE, SEQUENCES, Compute, Generate, Graph, Infer, Node, Score, Train
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.graph.executor import Executor
from rlhf_trainer.graph.learner import Learner
from rlhf_trainer.ops import OpContext
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

PATIENCE = 240
ALONE = Ranks(0, 1, torch.device("cpu"))
REFER = Infer(name="refer", model=REFERENCE, writes=("reference_logprobs",))
TRAIN = Train(name="train", model=POLICY, loss="policy", reads=(SEQUENCES,))
order: list[str] = []
started, released = threading.Event(), threading.Event()


def local(name: str, function: str, reads: tuple[str, ...], *writes: str) -> Compute:
    return Compute(name=name, function=f"{__name__}:{function}", reads=reads, writes=writes or (name,))


def one(columns: Columns, _ctx: OpContext) -> Columns:
    order.append("one")
    return columns.with_rows(one=torch.ones(len(columns)))


def two(columns: Columns, _ctx: OpContext) -> Columns:
    order.append("two")
    return columns.with_rows(two=2 * columns["one"])


def beside(columns: Columns, _ctx: OpContext) -> Columns:
    """Ends only if a call has begun that ends after this."""
    assert started.wait(PATIENCE), "the call had not started when a local node ran"
    released.set()
    return columns.with_rows(beside=torch.zeros(len(columns)))


def forgetful(columns: Columns, _ctx: OpContext) -> Columns:
    return columns


def scores(sequences: Sequences, _rows: object) -> torch.Tensor:
    return sequences.lengths.float()


def logprobs(sequences: Sequences, _rows: object) -> torch.Tensor:
    return -torch.arange(int(sequences.response_lengths.sum())).float()


def columns() -> Columns:
    return Columns(Sequences.pack([((1, 2), (3, 4, 5)), ((6,), (7,))]))


def executor(*nodes: Node, ranks: Ranks = ALONE, **remote) -> Executor:
    spec = spec_of("grpo")
    order.clear()
    started.clear()
    released.clear()
    graph, op_ctx = Graph((Generate(), *nodes, TRAIN)), OpContext(spec, settings_of(spec))
    return Executor(ranks, Learner(graph, {}, op_ctx), remote)


def test_calls_go_on_while_local_nodes_compute():
    def slow(sequences: Sequences, _rows: object) -> torch.Tensor:
        started.set()
        assert released.wait(PATIENCE), "local nodes waited for the call"
        return scores(sequences, None)

    run = executor(local("beside", "beside", (SEQUENCES,)), Score(), REFER, score=slow, refer=logprobs).run
    computed = run(columns())
    assert computed["scores"].tolist() == [5.0, 2.0]
    assert computed["reference_logprobs"].tolist() == [0, -1, -2, -3]


def test_calls_go_on_beside_each_other():
    """Each waits for the other one to have begun."""
    both = threading.Barrier(2)

    def meets(call):
        def met(sequences: Sequences, rows: object) -> torch.Tensor:
            both.wait(PATIENCE)
            return call(sequences, rows)

        return met

    computed = executor(Score(), REFER, score=meets(scores), refer=meets(logprobs)).run(columns())
    assert {"scores", "reference_logprobs"} <= {*computed.rows, *computed.tokens}


def test_a_role_gets_the_sequences_with_their_dataset_rows():
    got = []

    def call(sequences: Sequences, rows) -> torch.Tensor:
        got.append((sequences.tokens.tolist(), rows))
        return scores(sequences, rows)

    executor(Score(), score=call).run(columns(), [{"prompt": "a"}, {"prompt": "b"}])
    assert got == [([1, 2, 3, 4, 5, 6, 7], [{"prompt": "a"}, {"prompt": "b"}])]


def test_what_is_there_is_not_computed_again():
    given = columns().with_rows(one=torch.tensor([5.0, 6.0]))
    computed = executor(local("one", "one", (SEQUENCES,)), local("two", "two", ("one",))).run(given)
    assert order == ["two"]
    assert computed["two"].tolist() == [10.0, 12.0]


def test_until_runs_a_node_and_what_it_depends_on_alone():
    def never(*_given: object) -> torch.Tensor:
        raise AssertionError("nothing asked for scores")

    first, second = local("one", "one", (SEQUENCES,)), local("two", "two", ("one",))
    made = executor(Score(), first, second, local("beside", "beside", ("two",)), score=never)
    computed = made.run(columns(), until=second)
    assert order == ["one", "two"]
    assert "scores" not in computed
    assert made.run(columns(), until=first).rows.keys() == {"one"}


def test_a_node_that_breaks_its_promise_is_named():
    run = executor(local("advantages", "forgetful", (SEQUENCES,))).run
    with pytest.raises(
        InvalidJob, match=r"node 'advantages' wrote no column advantages, which its graph declares"
    ):
        run(columns())


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("gea", r"the graph names 'gea', which is neither one of .*\bgae\b.* nor a function as module:name"),
        ("no.such:function", r"'no.such:function' cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:nothing", r"cannot be imported: AttributeError"),
    ],
)
def test_an_operation_that_does_not_exist_is_an_error_before_anything_runs(function, says):
    with pytest.raises(InvalidJob, match=says) as caught:
        executor(Compute(name="n", function=function, writes=("n",)))
    assert [problem.where for problem in caught.value.problems] == ["spec.algorithm"]


@pytest.mark.parametrize("error", [Stopped("stop"), RuntimeError("the role is gone")])
def test_what_a_call_raises_is_raised(error):
    def fails(*_given: object) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)):
        executor(Score(), local("one", "one", ("scores",)), score=fails).run(columns())
    assert order == []


def test_a_column_of_another_size_is_refused():
    run = executor(Score(), score=lambda _sequences, _rows: torch.zeros(3)).run
    with pytest.raises(
        ValueError, match=r"column 'scores' has shape \(3,\); it needs one .* each of 2 sequences"
    ):
        run(columns())


def test_two_ranks_do_what_rank_0_decides(tmp_path):
    """The worker's calls end in an order that only rank 0 sees."""
    run_ranks(2, "tests.unit.trainer.graph.executor_worker", str(tmp_path), folder=tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["order"] == ["of_reference", "of_scores"], "though the graph has scores first"
    assert first["columns"] == {
        "reference_logprobs": [0, -1, -2, -3],
        "scores": [5, 2],
        "reward/length": [2.5, 1],
    }
    assert "wait for score" in first["waited"], "on the rank that called, and on the one that did not"
    assert first["stopped"] == "stopped while other roles worked on the step's responses"

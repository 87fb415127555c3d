"""Graphs: wrong ones are refused with all that is wrong; those of the algorithms call what they need and no more."""

from dataclasses import replace

import pytest
from tests.unit.trainer.graph.specs import GROUPED, OFFLINE, ONLINE, REFERRED, graph, spec_of

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.graph import (
    CRITIC,
    POLICY,
    REFERENCE,
    SEQUENCES,
    Compute,
    Dataset,
    Generate,
    Graph,
    GraphError,
    Infer,
    Node,
    Score,
    Train,
)
from rlhf_api.roles import Role
from rlhf_trainer.ops import COMPUTE, LOSSES, OUTPUTS, output_fn
from rlhf_trainer.tensors.batches import plan

TRAIN = Train(name="train", model=POLICY, loss="policy", reads=(SEQUENCES,))
PAIRED = replace(TRAIN, pairs="p")


def compute(name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> Compute:
    return Compute(name=name, function="f", reads=reads, writes=writes)


WRONG: list[tuple[tuple[Node, ...], str]] = [
    ((TRAIN,), "a graph has exactly one Generate or Dataset node"),
    ((Generate(), Dataset(rows="pairs"), TRAIN), "exactly one Generate or Dataset node"),
    ((Generate(), Score()), "it has no Train node"),
    (
        (Generate(), compute("a", ("scores",), ("x",)), Score(), TRAIN),
        "node 'a' reads 'scores', which no node before it writes; there are: sequences, sampled_logprobs",
    ),
    (
        (Dataset(rows="pairs"), compute("a", ("advantage",), ("x",)), TRAIN),
        "node 'a' reads 'advantage', which no node before it writes; there are: sequences",
    ),
    (
        (Generate(), Score(), compute("a", (), ("scores",)), TRAIN),
        "node 'a' writes 'scores', which node 'score' has written",
    ),
    ((Generate(), Score(), compute("score", (), ("x",)), TRAIN), "two nodes are named 'score'"),
    (
        (Generate(), Infer(name="i", model=POLICY, writes=("a", "b")), TRAIN),
        "node 'i' writes one column, not 2",
    ),
    (
        (Generate(), Infer(name="i", model=CRITIC, writes=("a",)), TRAIN),
        "node 'i' calls 'critic', which is neither trained nor the model of a role",
    ),
    (
        (Generate(), Infer(name="i", model=REFERENCE, average=0.9, writes=("a",)), TRAIN),
        "node 'i' infers with a moving average of 'reference', which no Train node trains",
    ),
    (
        (Generate(), Infer(name="i", model=REFERENCE, base=True, writes=("a",)), TRAIN),
        "node 'i' infers with the base of 'reference', which no Train node trains",
    ),
    (
        (
            Generate(),
            *(
                Infer(name=f"i{share}", model=POLICY, average=share, writes=(f"{share}",))
                for share in (0.9, 0.5)
            ),
            TRAIN,
        ),
        "nodes infer with several moving averages of 'policy': 0.5, 0.9; use one",
    ),
    (
        (
            Generate(),
            *(
                Infer(name=output, model=REFERENCE, output=output, writes=(output,))
                for output in ("logprobs", "logprobs_untempered")
            ),
            TRAIN,
        ),
        "nodes infer with several outputs of 'reference': logprobs, logprobs_untempered; use one",
    ),
    (
        (Generate(model=CRITIC), TRAIN, Train(name="critic", model=CRITIC, loss="value")),
        "Generate samples from the policy, which generators serve, not from 'critic'",
    ),
    (
        (Generate(), Train(name="train", model=CRITIC, loss="value")),
        "Generate samples from a model that no Train node trains",
    ),
    (
        (Generate(), Train(name="train", model=POLICY, loss="policy", reads="sequences")),
        "node 'train' has the text 'sequences' for its columns; write ('sequences',)",
    ),
    (
        (Dataset(rows="pairs"), replace(PAIRED, reads=("sequences", "p"))),
        "node 'train' pairs a dataset's responses, which come as pairs with rows: pairs",
    ),
    ((Generate(), PAIRED), "node 'train' pairs responses by 'p', which it does not read"),
    (
        (Generate(), compute("a", (), ("p",)), replace(PAIRED, reads=("p",), balance_tokens=True)),
        "node 'train' trains on pairs, which neither `only` nor `balance_tokens` may part",
    ),
    (
        (Dataset(rows="responses"), Score(), TRAIN),
        "node 'score' asks for rewards of a dataset's responses; only sampled ones have them",
    ),
]


@pytest.mark.parametrize(("nodes", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_graph_that_cannot_run_is_refused(nodes, says):
    with pytest.raises(GraphError) as caught:
        Graph(nodes)
    assert says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(GraphError) as caught:
        Graph((Generate(), compute("a", ("b",), ("c",)), compute("a", (), ("c",)), TRAIN))
    assert str(caught.value).count(";") >= 2, "a column that is missing, a name, a second writer"


PENALISED = {"ppo", "reinforce_pp", "rloo", "grpo"}
"""Have a KL penalty unless told otherwise."""
TRAINER, GENERATOR, REWARD, REFERENCED = Role.TRAINER, Role.GENERATOR, Role.REWARD, Role.REFERENCE


@pytest.mark.parametrize("coefficient", [None, 0, 0.1])
@pytest.mark.parametrize("algorithm", REFERRED)
def test_roles_follow_the_coefficient_of_the_penalty(algorithm, coefficient):
    algorithm_graph = graph(algorithm, "" if coefficient is None else f"klCoefficient: {coefficient}")
    has_reference = algorithm in PENALISED if coefficient is None else coefficient > 0
    assert algorithm_graph.roles == (TRAINER, GENERATOR, REWARD, *([REFERENCED] if has_reference else []))
    assert [m.name for m in algorithm_graph.trained] == (
        ["policy", "critic"] if algorithm == "ppo" else ["policy"]
    )
    assert (algorithm_graph.rows, algorithm_graph.generates) == ("prompts", True)
    assert any(getattr(node, "model", None) == REFERENCE for node in algorithm_graph.nodes) == has_reference


@pytest.mark.parametrize(
    ("algorithm", "rows", "roles"),
    [
        ("sft", "responses", (TRAINER,)),
        ("reward", "pairs", (TRAINER,)),
        ("process_reward", "stepwise", (TRAINER,)),
        ("dpo", "pairs", (TRAINER, REFERENCED)),
        ("kto", "labeled", (TRAINER, REFERENCED)),
    ],
)
def test_given_responses_need_no_generators(algorithm, rows, roles):
    algorithm_graph = graph(algorithm)
    assert (algorithm_graph.rows, algorithm_graph.generates, algorithm_graph.roles) == (rows, False, roles)
    assert len(algorithm_graph.trained) == 1


@pytest.mark.parametrize(("rows", "together"), [("pairs", True), ("responses", False)])
def test_the_responses_of_a_pair_share_a_micro_batch_whatever_their_lengths(rows, together):
    source = Graph((Dataset(rows=rows), TRAIN)).source
    assert isinstance(source, Dataset)
    (batches,) = plan([5, 90, 6, 80], 1, 100, source.group)
    assert all(sorted(batch) in ([0, 1], [2, 3]) for batch in batches) is together


def test_a_moving_average_is_no_role():
    algorithm_graph = graph("grpo", "klCoefficient: 0.1, referenceEma: 0.9")
    assert REFERENCED not in algorithm_graph.roles


@pytest.mark.parametrize("algorithm", REFERRED)
def test_old_log_probabilities_are_inferred_only_where_they_differ_from_those_of_the_update(algorithm):
    def infers(settings: str, *overrides: str) -> bool:
        return any("logprobs" in node.writes for node in graph(algorithm, settings, *overrides).prepare)

    in_loss = "klCoefficient: 0.1, klIn: loss, klEstimator: k3"
    assert not infers("klCoefficient: 0"), "one update of all responses"
    assert not infers(in_loss)
    assert infers("klCoefficient: 0, minibatchSize: 16")
    assert infers("klCoefficient: 0, epochs: 2")
    assert infers("klCoefficient: 0", "spec.replay.maxReplayEpisode=2"), "replayed responses are older"
    assert infers("klCoefficient: 0.1, klIn: reward"), "the reward needs them"


def test_group_algorithms_differ_in_baseline_and_loss_alone():
    functions = {
        name: [n.function for n in graph(name).prepare if isinstance(n, Compute)] for name in GROUPED
    }
    assert functions == {
        "grpo": ["response_rewards", "grpo"],
        "dr_grpo": ["response_rewards", "group_mean"],
        "rloo": ["response_rewards", "rloo"],
        "gspo": ["response_rewards", "grpo"],
        "cispo": ["response_rewards", "grpo"],
    }
    batch = [n.function for n in graph("gspo", "standardDeviation: batch").prepare if isinstance(n, Compute)]
    assert batch == ["response_rewards", "grpo_batch"]
    two = "spec.reward={functions: [{function: 'a:f'}, {function: 'a:measured', weight: 0}]}"
    for name in ("grpo", "gspo", "cispo"):
        (*_, score, advantages) = graph(name, "normalize: each", two).prepare
        assert score.writes == ("scores", "reward/model", "reward/f"), (
            "one that is measured alone is not read"
        )
        assert advantages.reads == ("reward/model", "reward/f", "position")
    assert {name: graph(name).train[0].loss for name in GROUPED} == dict.fromkeys(GROUPED, "policy") | {
        "gspo": "gspo",
        "cispo": "cispo",
    }


SETTINGS = (
    *(
        "",
        "klCoefficient: 0",
        "klCoefficient: 0.1, klIn: reward",
        "klCoefficient: 0.1, klIn: loss, klEstimator: k3",
    ),
    *("overlongFilter: true", "minibatchSize: 8, epochs: 2", "klCoefficient: 0.1, referenceEma: 0.5"),
    *("entropyCoefficient: 0.01", "topEntropy: 0.2"),
)


def test_every_key_of_every_graph_is_in_the_trainers_tables():
    """The reverse holds too: every entry of the tables is used by some graph."""
    used: set[str] = set()
    for algorithm in ALGORITHMS:
        variants = SETTINGS if algorithm in REFERRED else ("",)
        rewards = (
            tuple(
                f"spec.reward={{{more}functions: [{{function: 'a:b'}}]}}"
                for more in ("", "fineGrained: true, ")
            )
            if algorithm in ONLINE
            else ("spec.seed=0",)
        )
        if algorithm == "reinforce_pp":
            variants += ("groupBaseline: true",)
        if algorithm == "grpo":
            variants += ("standardDeviation: batch", "normalize: each", "clipCov: 0.1, klCov: 0.1")
        if algorithm == "distillation":
            variants += ("teacherTopK: 8",)
        for settings in variants:
            for reward in rewards:
                used |= keys(algorithm, settings, reward)
        if algorithm in ONLINE:
            corrected = "none" if algorithm == "online_dpo" else "token"
            used |= keys(algorithm, "", f"spec.rollout.importance={corrected}")
            used |= keys(algorithm, "", "spec.environment={path: 'a:B'}")
    assert used == {*COMPUTE, *LOSSES, *OUTPUTS}


def keys(algorithm: str, *settings: str) -> set[str]:
    spec, used = spec_of(algorithm, *settings), set[str]()
    for node in graph(algorithm, *settings).nodes:
        if isinstance(node, Compute):
            assert node.function in COMPUTE
            used.add(node.function)
        if isinstance(node, Train):
            assert node.loss in LOSSES
            used.add(node.loss)
        if isinstance(node, Infer | Train):
            assert node.output in OUTPUTS
            assert callable(output_fn(node.output, spec))
            used.add(node.output)
    return used


def test_every_algorithm_is_covered_here():
    assert {*ONLINE, *OFFLINE} == set(ALGORITHMS)

"""A graph of one's own is held to the rules about weights and scores that ours are, once it is imported."""

from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.own_algorithm import resolve

MODULE = """
from rlhf_api.algorithms import Algorithm
from rlhf_api.graph import POLICY, SEQUENCES, Generate, Graph, Infer, Score, Train

def graph_with(**weights):
    before = Infer(name="before", model=POLICY, writes=("before",), **weights)
    train = Train(name="train", model=POLICY, loss="policy", reads=(SEQUENCES, "before"))
    return Algorithm("own", None, lambda _spec, _settings: Graph((Generate(), Score(), before, train)))

AVERAGED, BASED = graph_with(average=0.9), graph_with(base=True)

def graph_of_rounds(score):
    train = Train(name="train", model=POLICY, loss="policy", reads=(SEQUENCES,))
    return Algorithm("own", None, lambda _spec, _settings: Graph((Generate(rounds=2), score, train)))

ROUNDS = graph_of_rounds(Score())
UNSCORED = graph_of_rounds(Score(writes=("token_scores",), per_token=True))
SINGLE = graph_of_rounds(Score(writes=("scores", "reward/f", "reward/g")))
"""
ADAPTER = "spec.model.lora={policy: {rank: 8}}"
ON_DISKS = (
    "spec.trainer.deepspeed={zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: /disk}}}"
)


@pytest.mark.parametrize(
    ("graph", "override", "refused"),
    [
        ("AVERAGED", "spec.steps=2", None),
        ("AVERAGED", ADAPTER, "spec.model.lora.policy: the job keeps a moving average of the policy"),
        (
            "AVERAGED",
            ON_DISKS,
            "spec.trainer.deepspeed.zero_optimization.offload_param.device: the job keeps a moving average",
        ),
        ("BASED", ADAPTER, None),
        (
            "BASED",
            "spec.steps=2",
            "spec.model.lora.policy: the graph of 'own_graphs:BASED' infers with the policy without its adapter",
        ),
        ("ROUNDS", "spec.sampling.responsesPerPrompt=2", None),
        (
            "ROUNDS",
            "spec.sampling.responsesPerPrompt=1",
            "spec.sampling.responsesPerPrompt: the graph of 'own_graphs:R",
        ),
        (
            "SINGLE",
            "spec.reward={functions: [{function: 'a:f'}]}",
            "spec.algorithm: node 'score' writes 'reward/g', the scores of no reward with a weight; those of the job: "
            "reward/model, reward/f",
        ),
        (
            "UNSCORED",
            "spec.reward={fineGrained: true, functions: [{function: 'a:b'}]}",
            "spec.algorithm: the graph of 'own_graphs:UNSCORED' replaces groups",
        ),
    ],
)
def test_what_a_job_does_not_have_is_refused(
    graph: str, override: str, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_graphs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    several = "spec.sampling.responsesPerPrompt=2"
    spec = job("spec.ppo={}", several, f"spec.algorithm=own_graphs:{graph}", override).spec
    if refused is None:
        assert resolve(spec).graph.prepare
        return
    with pytest.raises(InvalidJob) as caught:
        resolve(spec)
    (problem,) = caught.value.problems
    assert str(problem).startswith(refused)

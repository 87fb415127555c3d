"""Online DPO: pairs of sampled responses have DPO's losses and references, and what would part them is refused."""

import pytest
from tests.unit.api.manifests import assert_refused, job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.trainer_memory import largest_row
from rlhf_api.graph import POLICY, Infer
from rlhf_api.roles import Role
from rlhf_api.rules.own_algorithm import resolve

ONLINE = (
    *("spec.algorithm=online_dpo", "spec.ppo={}", "spec.onlineDpo={minibatchSize: 16}"),
    *("spec.sampling={responsesPerPrompt: 2}", "spec.rollout={}"),
)


@pytest.mark.parametrize(
    ("override", "rest"),
    [
        ("spec.sampling.responsesPerPrompt=1", ("", "online_dpo compares the responses to a prompt")),
        ("spec.reward.functions=[]", ("spec.reward", "nothing scores the answers")),
        ("spec.onlineDpo.minibatchSize=17", ("", "a step has 16 responses")),
        ("spec.onlineDpo.overlongBuffer=257", ("", "must be at most sampling.maxNewTokens (256)")),
        ("spec.onlineDpo={loss: ipo, margin: 0.1, minibatchSize: 8}", (".margin", "sigmoid and simpo")),
        ("spec.onlineDpo.clipRatio=0.1", ("", "unknown field")),
        ("spec.rollout.importance=token", ("", "the loss of pairs has none")),
        ("spec.rollout={maxStaleness: 1, proximal: sampled}", (".proximal", "the loss of pairs has none")),
        (
            "spec.replay.maxReplayEpisode=2",
            ("", "draws single responses again, and online_dpo trains on pairs"),
        ),
        ("spec.pretraining={data: [x], rowsPerUpdate: 3}", (".rowsPerUpdate", "must be even")),
        (
            "spec.health.rules=[{metric: clip_fractoin, above: 1, action: warn}]",
            ("[0].metric", "no step of online_dpo"),
        ),
    ],
)
def test_what_pairs_do_not_go_with_is_refused(override, rest):
    given = (*ONLINE, "spec.model.reward=null") if "functions" in override else ONLINE
    assert_refused(override, *rest, given=given)


def test_without_a_reference_its_fields_are_refused():
    simpo = "spec.onlineDpo={loss: simpo, minibatchSize: 16}"
    assert Role.REFERENCE not in job(*ONLINE, simpo).spec.graph.roles
    assert_refused("spec.model.reference=org/other", "spec.onlineDpo.loss is simpo", given=(*ONLINE, simpo))


def test_the_reference_of_an_adapter_is_its_base():
    graph = job(*ONLINE, "spec.model.lora={policy: {rank: 2}}").spec.graph
    assert Role.REFERENCE not in graph.roles
    (inferred,) = [node for node in graph.prepare if isinstance(node, Infer)]
    assert (inferred.model, inferred.base) == (POLICY, True)


def test_a_pair_is_a_row_that_no_micro_batch_divides():
    assert largest_row(job(*ONLINE).spec, POLICY) == 2 * (512 + 256)


@pytest.mark.parametrize("name", ["accuracy", "reward_margin", "kl_mean", "logprob_difference"])
def test_health_rules_may_go_by_metrics_of_pairs(name):
    assert job(*ONLINE, f"spec.health.rules=[{{metric: {name}, above: 1, action: warn}}]")


def test_an_algorithm_of_ones_own_on_pairs_is_refused_what_parts_them():
    """Under the name of an import path it is known where the trainer resolves it."""
    own = (
        *("spec.algorithm=rlhf_api.algorithms.online_dpo:ALGORITHM", "spec.ppo={}", *ONLINE[3:]),
        "spec.custom={reference: true, settings: {minibatchSize: 16}}",
    )
    assert resolve(job(*own).spec).graph.train[0].pairs == "preference"
    with pytest.raises(InvalidJob, match=r"^spec.replay.maxReplayEpisode: draws single responses again"):
        resolve(job(*own, "spec.replay.maxReplayEpisode=2").spec)

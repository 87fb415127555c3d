"""`normalize: each`: accepted where several rewards count, and refused with what it contradicts."""

import pytest
from tests.unit.api.manifests import refusals
from tests.unit.trainer.graph.specs import spec_of

from rlhf_api.errors.problem import InvalidJob

EACH = "normalize: each"
TWO = "spec.reward={functions: [{function: 'a:f'}]}"
"""With the reward model."""
PLAYED = ("spec.model.reward=null", "spec.environment={path: 'a:B'}")


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize(
    "rewards",
    [
        (TWO,),
        (*PLAYED, TWO),
        ("spec.reward={models: [{name: m, model: org/other}]}",),
        ("spec.model.reward=null", "spec.reward={functions: [{function: 'a:f'}, {function: 'a:g'}]}"),
    ],
)
def test_several_rewards_may_each_be_normalised(algorithm, rewards):
    spec_of(algorithm, EACH, *rewards)


@pytest.mark.parametrize(
    ("settings", "rewards", "where", "says"),
    [
        (EACH, ("spec.reward={}",), "spec.grpo.normalize", "1 has a weight other than 0 .*; use sum, or add"),
        (EACH, (*PLAYED, "spec.reward={}"), "spec.grpo.normalize", "1 has a weight"),
        (EACH, (TWO.replace("'a:f'", "'a:f', weight: 0"),), "spec.grpo.normalize", "1 has a weight"),
        (f"{EACH}, klIn: reward", (TWO,), "spec.grpo.klIn", "use loss; got 'reward'"),
        (EACH, (TWO, "spec.reward.clip=[-1, 1]"), "spec.reward.clip", r"remove it; got \[-1.0, 1.0\]"),
        (EACH, (TWO, "spec.reward.scale=2"), "spec.reward.scale", "is of the sum of the rewards, .* got 2.0"),
        (EACH, (TWO, "spec.reward.bias=2"), "spec.reward.bias", "remove it; got 2.0"),
    ],
)
def test_what_it_contradicts_is_refused(settings, rewards, where, says):
    with pytest.raises(InvalidJob) as caught:
        spec_of("grpo", settings, *rewards)
    (problem,) = [each for each in caught.value.problems if each.where == where]
    with pytest.raises(InvalidJob, match=f"{where}: .*{says}"):
        raise InvalidJob([problem])


def test_algorithms_that_divide_by_no_deviation_do_not_have_it():
    """The sum of rewards less their means is that of the sum."""
    assert "normalize" in " ".join(
        refusals("spec.ppo={}", "spec.algorithm=rloo", "spec.rloo={normalize: each}")
    )

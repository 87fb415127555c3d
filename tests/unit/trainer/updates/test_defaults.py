"""Defaults with which PPO learns: the reward reaches every token, and the critic keeps up."""

import pytest
import torch
from tests.unit.api.manifests import job

from rlhf_api.algorithms.ppo import PPO
from rlhf_trainer.maths.advantages import generalized_advantages
from rlhf_trainer.updates.updates import learning_rate_of


def test_the_reward_reaches_the_first_token_whole():
    """A critic that knows nothing yet says 0: then each token's advantage is the reward itself."""
    length = 200
    rewards, values = torch.zeros(length), torch.zeros(length)
    rewards[-1] = 1.0
    ppo = PPO()
    advantages, _ = generalized_advantages(rewards, values, torch.tensor([length]), ppo.gamma, ppo.gae_lambda)
    torch.testing.assert_close(advantages, torch.ones(length))


def test_the_policy_warms_up_once_the_critic_has():
    """As in verl, the policy's schedule begins with its first update."""
    spec = job("spec.optimizer={learningRate: 4e-6, warmupSteps: 4, schedule: linear}", "spec.steps=14").spec
    rates = [learning_rate_of(spec, critic=False, step=step, from_step=6) for step in range(14)]
    assert rates[:6] == [0.0] * 6
    assert rates[6:] == pytest.approx([1e-6, 2e-6, 3e-6, 4e-6, 4e-6, 3e-6, 2e-6, 1e-6])


def test_a_job_has_warmup_stable_decay():
    falling = "schedule: linear, warmupSteps: 2, decaySteps: 2, floor: 0.5"
    spec = job(f"spec.optimizer={{learningRate: 4e-6, {falling}}}", "spec.steps=6").spec
    rates = [learning_rate_of(spec, critic=False, step=step) for step in range(6)]
    assert rates == pytest.approx([2e-6, 4e-6, 4e-6, 4e-6, 4e-6, 3e-6])


def test_the_critic_learns_ten_times_as_fast_unless_told():
    spec = job("spec.optimizer={learningRate: 2e-6}").spec
    assert learning_rate_of(spec, critic=False, step=1) == 2e-6
    assert learning_rate_of(spec, critic=True, step=1) == pytest.approx(2e-5)
    given = job("spec.optimizer={learningRate: 2e-6, criticLearningRate: 0.0}").spec
    assert learning_rate_of(given, critic=True, step=1) == 0.0


@pytest.mark.parametrize(
    ("lora", "rate"),
    [(None, 1e-3), ("{policy: {}, critic: {}}", 1e-4), ("{policy: {}}", 1e-5), ("{critic: {}}", 1e-3)],
)
def test_the_critics_rate_follows_what_is_trained(lora, rate):
    """The rate of a policy's adapter is not multiplied, and is not that of a whole critic."""
    adapters = () if lora is None else (f"spec.model.lora={lora}",)
    spec = job("spec.optimizer.learningRate=1e-4", *adapters).spec
    assert learning_rate_of(spec, critic=False, step=1) == 1e-4
    assert learning_rate_of(spec, critic=True, step=1) == pytest.approx(rate)
    given = job("spec.optimizer={learningRate: 1e-4, criticLearningRate: 3e-4}", *adapters).spec
    assert learning_rate_of(given, critic=True, step=1) == 3e-4

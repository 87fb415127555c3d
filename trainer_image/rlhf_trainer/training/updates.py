"""PPO's updates of policy and critic in one step, and what they tell."""

from collections.abc import Iterable

from torch import Tensor

from rlhf_api.spec import Spec

from .. import faults
from ..algorithms.ppo import critic_loss, policy_loss
from ..batches import OutputFn, response_values
from ..models.trained_model import TrainedModel
from ..records import Experience
from .rates import rate_at


class Updates:
    """One step's updates, each of both models on one minibatch."""

    def __init__(
        self, spec: Spec, policy: TrainedModel, critic: TrainedModel, read: OutputFn, step: int
    ) -> None:
        self._ppo, self._policy, self._critic, self._read = spec.ppo, policy, critic, read
        optimizer, base = spec.optimizer, spec.optimizer.critic_learning_rate
        self._actor_rate = rate_at(spec, step, optimizer.learning_rate)
        self._critic_rate = self._actor_rate if base is None else rate_at(spec, step, base)
        self._step, self._count, self._sums = step, 0, dict[str, float]()

    def run(self, experience: Experience, minibatches: Iterable[Tensor]) -> None:
        """An update on each minibatch: rows of the experience."""
        for rows in minibatches:
            faults.point(f"update:{self._step}.{self._count}")
            part = experience.select(rows)
            loss = policy_loss(part, self._ppo)
            actor = self._policy.update(part.sequences, self._read, loss, self._actor_rate)
            loss = critic_loss(part, self._ppo)
            critic = self._critic.update(part.sequences, response_values, loss, self._critic_rate)
            named = {f"policy_{k}": v for k, v in actor.items()} | {
                f"critic_{k}": v for k, v in critic.items()
            }
            self._sums = {key: self._sums.get(key, 0.0) + value for key, value in named.items()}
            self._count += 1

    def figures(self) -> dict[str, float]:
        """Means over the updates."""
        means = {key: value / self._count for key, value in self._sums.items()}
        return {**means, "loss": means["policy_loss"], "learning_rate": self._actor_rate}

"""Rollouts that the trainer generates itself."""

from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling

from ..local_generation.shared import generate_shared
from ..models.trained_model import TrainedModel
from ..ranks.context import TrainerContext
from ..tensors.records import Prompt
from .partial_rollout import Ended, nobody
from .requests import Responses
from .rollouts import Rollouts


class TrainerRollouts(Rollouts):
    """Samples with the policy's own weights, on every rank."""

    def __init__(self, ctx: TrainerContext, policy: TrainedModel) -> None:
        super().__init__()
        self._ctx, self._policy = ctx, policy

    def answer(
        self,
        prompts: list[Prompt],
        sampling: Sampling,
        penalties: Penalties = NO_PENALTIES,
        *,
        masks: bool = True,
        ended: Ended = nobody,  # noqa: ARG002
    ) -> Responses:
        """Each rank has all of them. `ended` is not called."""
        ctx = self._ctx
        made = generate_shared(
            *(self._policy, ctx.ranks, ctx.tokenizer, prompts, sampling, self.version, ctx.stop, penalties),
            masks=masks,
        )
        return Responses(made)

"""Episodes that ended with a problem of their environment: left out of a step, and counted."""

import logging
from collections import Counter
from dataclasses import replace

from ..scoring.reward_client import Unscored
from .in_flight.requests import Responses

log = logging.getLogger(__name__)


class FailedEpisodes:
    """Leaves them out, if they are few enough of the step: an environment that fails gives no reward, not 0."""

    def __init__(self, each_step: int, max_failed_share: float) -> None:
        """`each_step`: episodes of a step; `max_failed_share`: the share of them that may fail."""
        self._each_step, self._max_failed_share = each_step, max_failed_share
        self._episodes = self._failed = 0

    def leave_out(self, responses: Responses) -> Responses:
        """The responses whose episodes have no problem; prompts that have none of these are refused with the reason.
        Raises Unscored if too many of the step's episodes have failed."""
        failed = {
            i: r.outcome.problem
            for i, r in enumerate(responses.rollouts)
            if r.outcome is not None and r.outcome.problem
        }
        self._episodes += sum(r.outcome is not None for r in responses.rollouts)
        self._failed += len(failed)
        if not failed:
            return responses
        reasons = Counter(failed.values()).most_common()
        for reason, count in reasons:
            log.warning("%d of %d episodes have no reward: %s", count, len(responses.rollouts), reason)
        if self._failed > self._max_failed_share * max(self._each_step, self._episodes):
            raise Unscored(
                f"{self._failed} of the step's {self._episodes} episodes so far have no reward ({reasons[0][0]}); "
                f"spec.reward.maxFailedShare {self._max_failed_share:g} allows fewer"
            )
        rest = [r for i, r in enumerate(responses.rollouts) if i not in failed]
        left = {r.prompt.id for r in rest}
        lost = {responses.rollouts[i].prompt.id: reason for i, reason in failed.items()}
        refused = {prompt_id: reason for prompt_id, reason in lost.items() if prompt_id not in left}
        return replace(responses, rollouts=rest, refused=responses.refused | refused)

    def take_metrics(self) -> dict[str, float]:
        """The number of episodes that failed since the last call, and their share; nothing if there were none at
        all."""
        episodes, failed = self._episodes, self._failed
        self._episodes = self._failed = 0
        return {"episodes_failed": failed, "episodes_failed_share": failed / episodes} if episodes else {}

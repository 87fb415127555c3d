"""Worker extension: reports the versions and digests of a vLLM worker's weights."""

from typing import Any


class WeightStatus:
    """`--worker-extension-cls rlhf_trainer.engines.vllm.extension.WeightStatus`, asked through POST /collective_rpc
    `{"method": "rlhf_status"}`. vLLM mixes it into its worker class, whose attributes these are."""

    weight_transfer_engine: Any
    rank: int
    _weight_update_active: bool

    def rlhf_status(self) -> dict[str, object]:
        """`version` and `digest` of the weights that serve (None: the checkpoint's), `epoch` joined, the
        `announced_version` that the trainer sent last, whether or not it came; and of an update under way: whether a
        session is `open`, the `staged_version` and `staged_digest` received, or the `failure` to receive them.
        """
        engine = self.weight_transfer_engine
        staged = engine.staged
        return {
            "rank": self.rank,
            "version": engine.version,
            "digest": engine.digest,
            "epoch": engine.epoch,
            "announced_version": engine.announced,
            "open": self._weight_update_active,
            "staged_version": staged.version if staged else None,
            "staged_digest": staged.digest if staged else None,
            "failure": engine.failure,
        }

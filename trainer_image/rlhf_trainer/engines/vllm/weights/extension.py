"""Worker extensions of vLLM: weight version and digest reports, and logits at a temperature."""

from collections.abc import Callable
from typing import Any

SLICE_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}
"""Bytes of serving memory hashed per call: some milliseconds, about an engine step."""


class WeightStatus:
    """`--worker-extension-cls rlhf_trainer.engines.vllm.weights.extension.WeightStatus`, called through POST
    /collective_rpc `{"method": "rlhf_status"}` and by `Commit`. vLLM mixes it into its worker class, whose attributes
    these are."""

    weight_transfer_engine: Any
    rank: int
    _weight_update_active: bool

    def rlhf_status(self) -> dict[str, object]:
        """`version` and `digest` of the serving weights (None: the checkpoint's), the `epoch` joined, the
        `announced_version` that the trainer sent last (arrived or not) and the name of the `base` that it keeps;
        for an update under way, whether a session is `open`, the `staged_version` and `staged_digest` received, or the
        `failure` to receive them.
        """
        engine = self.weight_transfer_engine
        staged = engine.staged
        return {
            "rank": self.rank,
            "version": engine.version,
            "digest": engine.digest,
            "epoch": engine.epoch,
            "announced_version": engine.announced,
            "base": engine.base.name if engine.base else None,
            "open": self._weight_update_active,
            "staged_version": staged.version if staged else None,
            "staged_digest": staged.digest if staged else None,
            "failure": engine.failure,
        }

    def rlhf_prove(self) -> bool:
        """Verifies a slice of the serving weights against those loaded last (`Served.prove`); True once all are
        verified.
        """
        engine = self.weight_transfer_engine
        done: bool = engine.served.prove(SLICE_BYTES[engine.device.type])
        return done

    def rlhf_recheck(self) -> dict[str, object]:
        """Completes that verification, then hashes the next slice of the serving memory again: `changed` names a part
        that is not as it was loaded, None if all are."""
        engine = self.weight_transfer_engine
        engine.served.recheck(SLICE_BYTES[engine.device.type])
        return {"rank": self.rank, "changed": engine.served.changed}

    def rlhf_release(self) -> dict[str, object]:
        """Completes that verification and hashes all of the serving memory again, `changed` as in `rlhf_recheck`; then
        lets go of all weights, which are to be sent again before the next request."""
        engine = self.weight_transfer_engine
        engine.release()
        return {"rank": self.rank, "changed": engine.served.changed}


class Tempered:
    """`--worker-extension-cls rlhf_trainer.engines.vllm.weights.extension.Tempered`: prompt log-probabilities at a
    sampling temperature, which vLLM otherwise computes at 1."""

    get_model: Callable[[], Any]

    def rlhf_temper(self, temperature: float) -> None:
        """Divides the model's logits by `temperature`, in float32, from now on."""
        model = self.get_model()
        compute = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            return None if logits is None else logits.float() / temperature  # None: another rank has them

        model.compute_logits = compute_logits

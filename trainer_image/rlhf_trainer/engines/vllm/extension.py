"""Worker extensions: reports of a vLLM worker's versions and digests of weights; logits at a temperature."""

from collections.abc import Callable
from typing import Any

SLICE_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}
"""Of the served memory that one call reads: some milliseconds, about a step of the engine."""


class WeightStatus:
    """`--worker-extension-cls rlhf_trainer.engines.vllm.extension.WeightStatus`, asked through POST /collective_rpc
    `{"method": "rlhf_status"}`. vLLM mixes it into its worker class, whose attributes these are."""

    weight_transfer_engine: Any
    rank: int
    _weight_update_active: bool

    def rlhf_status(self) -> dict[str, object]:
        """`version` and `digest` of the weights that serve (None: the checkpoint's), `epoch` joined, the
        `announced_version` that the trainer sent last, whether or not it came, and the name of the `base` that is kept
        for adapters; and of an update under way: whether a session is `open`, the `staged_version` and `staged_digest`
        received, or the `failure` to receive them.
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
        """A slice of the proof that the weights loaded last are served (`Served.prove`); True once it is done."""
        engine = self.weight_transfer_engine
        done: bool = engine.served.prove(SLICE_BYTES[engine.device.type])
        return done

    def rlhf_recheck(self) -> dict[str, object]:
        """Ends that proof and looks again at a slice of what serves: `changed` says what is not as it was loaded, None
        where all is."""
        engine = self.weight_transfer_engine
        engine.served.recheck(SLICE_BYTES[engine.device.type])
        return {"rank": self.rank, "changed": engine.served.changed}


class Tempered:
    """`--worker-extension-cls rlhf_trainer.engines.vllm.extension.Tempered`: log-probabilities of prompts at a sampling
    temperature, where vLLM has them at 1 whatever is asked for."""

    get_model: Callable[[], Any]

    def rlhf_temper(self, temperature: float) -> None:
        """From now on the model's logits are those of a forward pass divided by `temperature`, in float32."""
        model = self.get_model()
        compute = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            return None if logits is None else logits.float() / temperature  # None: another rank has them

        model.compute_logits = compute_logits

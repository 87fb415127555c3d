"""A worker extension for tests: `spoil_swap` makes the next swap of weights fail half-way, `spoil_steps` every step of
the engine."""

from rlhf_trainer.engines.vllm.extension import WeightStatus


class Sabotage(WeightStatus):
    def spoil_swap(self) -> None:
        model = self.weight_transfer_engine.model
        whole = model.load_weights

        def half(weights) -> set[str]:
            whole(pair for _, pair in zip(range(5), weights, strict=False))
            raise RuntimeError("spoilt for a test")

        model.load_weights = half

    def spoil_steps(self) -> None:
        def fail(*_args, **_kwargs) -> None:
            raise RuntimeError("spoilt for a test")

        self.model_runner.execute_model = fail

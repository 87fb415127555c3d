"""A worker extension for tests: `spoil_swap` makes the next swap of weights fail half-way, `spoil_steps` every step of
the engine, and `spoil_weight` a weight that serves. `hold_swap` makes the next swap wait. `fingerprints` are those of
all that serves."""

import time
from pathlib import Path

import torch
from tests.support.servers.paced import Paced

from rlhf_trainer.engines.vllm.weights.served import parts


class Sabotage(Paced):
    def spoil_swap(self) -> None:
        model = self.weight_transfer_engine.model
        whole = model.load_weights

        def half(weights) -> set[str]:
            whole(pair for _, pair in zip(range(5), weights, strict=False))
            raise RuntimeError("spoilt for a test")

        model.load_weights = half

    def hold_swap(self, held: str) -> None:
        """It makes this file, and goes on once the file is gone."""
        swap, file = self.finish_weight_update, Path(held)

        def finish_weight_update() -> None:
            del self.finish_weight_update
            file.touch()
            while file.exists():
                time.sleep(0.01)
            swap()

        self.finish_weight_update = finish_weight_update

    def spoil_steps(self) -> None:
        def fail(*_args, **_kwargs) -> None:
            raise RuntimeError("spoilt for a test")

        self.model_runner.execute_model = fail

    def spoil_weight(self, name: str) -> None:
        """Of a parameter one value; of a layer, which an engine on a CPU has packed, the whole weight."""
        model = self.weight_transfer_engine.model
        if name in dict(model.named_parameters()):
            model.get_parameter(name).data.view(-1)[-1] += 0.01
            return
        layer = model.get_submodule(name)
        weight = torch.randn(sum(layer.output_partition_sizes), layer.input_size)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        layer.quant_method.process_weights_after_loading(layer)

    def fingerprints(self) -> dict[str, list[int]]:
        model = self.weight_transfer_engine.model
        return {part.name: part.fingerprint().flatten().tolist() for part in parts(model)}

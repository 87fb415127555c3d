"""The experts that routers choose, from vLLM's engine on a CPU. vLLM returns them from its model runner V2 alone, which
needs Triton and so a GPU; here the runner that CPUs have calls vLLM's own capture of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.distributed.aux_output_connector.worker import PendingAuxOutput, get_aux_output_connector
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker


class RoutedRunner(CPUModelRunner):
    """vLLM's runner, with what routers chose for the tokens of a step in its output, as from runner V2."""

    _captured: PendingAuxOutput | None = None

    def initialize_kv_cache(
        self, kv_cache_config: Any, is_profiling: bool = False, kv_cache_allocation_context: Any = None
    ) -> None:
        super().initialize_kv_cache(kv_cache_config, is_profiling, kv_cache_allocation_context)
        if not is_profiling:
            self._connector = get_aux_output_connector(self.get_model(), self.vllm_config, kv_cache_config)

    def execute_model(self, scheduler_output: Any, *more: Any) -> Any:
        self._connector.begin_step(scheduler_output.aux_output_connector_metadata)
        output = super().execute_model(scheduler_output, *more)
        if output is None:  # to be sampled from
            batch: Any = SimpleNamespace(
                req_ids=self.input_batch.req_ids,
                query_start_loc_np=self.query_start_loc.np,
                num_computed_tokens_np=self.input_batch.num_computed_tokens_cpu[
                    : self.input_batch.num_reqs
                ].copy(),
            )
            self._captured = self._connector.prepare_output(batch)
        return output

    def sample_tokens(self, *given: Any) -> Any:  # type: ignore[override]
        output, captured = super().sample_tokens(*given), self._captured
        if captured is not None:
            counts = np.array([len(tokens) for tokens in output.sampled_token_ids])
            captured.enqueue_cpu_copy(counts, np.zeros_like(counts))
            output.aux_output_connector_output, self._captured = captured.process_output(), None
        return output


class RoutedWorker(CPUWorker):
    """vLLM's worker with that runner."""

    def init_device(self) -> None:
        super().init_device()  # type: ignore[no-untyped-call]
        assert self.device is not None
        self.model_runner = RoutedRunner(self.vllm_config, self.device)

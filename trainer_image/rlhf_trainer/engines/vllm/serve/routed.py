"""Has vLLM return what routers chose on a CPU too, by a worker of ours; imports little, as each of its processes runs
it."""

WORKER = "rlhf_trainer.engines.vllm.serve.routed_worker.RoutedWorker"
"""`--worker-cls` on a CPU beside `--enable-return-routed-experts`."""


def allow_on_cpus() -> None:
    """Has vLLM's check of its configuration, which knows its model runner V2 alone, accept that worker."""
    from vllm.config import VllmConfig

    check = VllmConfig._verify_aux_output_compatibility
    if check.__module__ == __name__:
        return

    def check_others(self: VllmConfig) -> None:
        if self.parallel_config.worker_cls != WORKER:
            check(self)

    VllmConfig._verify_aux_output_compatibility = check_others  # type: ignore[method-assign]

"""Worker of an engine that takes turns with a trainer on its GPU, where others allocate memory too."""

import logging

from vllm.v1.worker.gpu_worker import Worker

from .watchdog import end_soon

log = logging.getLogger("vllm.rlhf")

OTHERS_GREW = "Memory usage increased after sleeping."
"""Error of vLLM's last check of a sleep, which compares what is free on the whole GPU: that a process beside it has
taken more meanwhile than the engine gave back fails it too."""


class SleepingWorker(Worker):
    """`--worker-cls` beside `--enable-sleep-mode`. A worker that can neither sleep nor wake up whole ends, and so does
    its server, which is started again: some of its memory is unmapped then, and each next call would fail."""

    def sleep(self, level: int = 1) -> None:
        try:
            super().sleep(level)
        except BaseException as error:
            if str(error) != OTHERS_GREW:
                end_soon(f"the engine could not sleep: {error}")
                raise
            log.info("asleep, while others on this GPU took more memory than the engine gave back")

    def wake_up(self, tags: list[str] | None = None) -> None:
        try:
            super().wake_up(tags)
        except BaseException as error:
            end_soon(f"the engine could not wake up: {error}")
            raise

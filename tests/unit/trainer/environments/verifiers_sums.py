"""A taskset of verifiers with a rubric and no turns of its own."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def is_right(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply == task.answer)


class SumConfig(vf.TasksetConfig):
    largest: int = 9


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(SumData(prompt=f"{n} + 1 = ?", system_prompt="Add.", answer=str(n + 1)), self.config.task)
            for n in range(self.config.largest)
        ]


__all__ = ["SumTaskset"]

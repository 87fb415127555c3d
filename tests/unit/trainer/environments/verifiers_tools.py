"""A taskset of verifiers with a tool."""

from typing import Any

import verifiers.v1 as vf


class Adder(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b


class AddConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class AddTask(vf.Task[vf.TaskData, vf.State, AddConfig]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "5")

    @classmethod
    def toolsets(cls, config: AddConfig) -> list[Any]:
        return [Adder(config.tools)]


class AddTasksetConfig(vf.TasksetConfig):
    task: AddConfig = AddConfig()


class AddTaskset(vf.Taskset[AddTask, AddTasksetConfig]):
    def load(self) -> list[AddTask]:
        return [AddTask(vf.TaskData(prompt="2 + 3 = ?"), self.config.task)]


__all__ = ["AddTaskset"]

if __name__ == "__main__":
    Adder.run()

"""A taskset of verifiers with an environment of several turns: it says whether the number is higher or lower."""

from typing import Any

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def half_a_point_for_each_turn(self, trace: vf.Trace) -> float:
        return 0.5 * trace.num_turns


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    fails: bool = False


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply != str(task.data.secret):
                if self.config.fails:
                    raise RuntimeError("no such number")
                low = int(segment.last_reply) < task.data.secret
                segment = await interaction.turn("Higher." if low else "Lower.")
        if not segment.terminated:
            interaction.trace.record_reward("guessed", 10.0)


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Any:
        number = 0
        while True:
            yield GuessTask(GuessData(prompt="A number?", secret=number), self.config.task)
            number += 1


__all__ = ["GuessEnv", "GuessTaskset"]

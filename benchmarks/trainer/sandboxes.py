"""Times the start of a sandbox, for which an environment's `run_in_sandbox` and an agent's program wait.

    .venv/bin/python benchmarks/trainer/sandboxes.py [--starts 200] [--at-once 1]

One JSON line for each case: p50, p95 and the most milliseconds from the call to the end of a command that does
nothing. `plain`: no sandbox, to compare with. `command`: `run_in_sandbox`. `program`: an agent of
`environment.program`, in namespaces of its own. Each runs a shell, and the system's Python.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import quantiles

from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.program.process import AgentProcess
from rlhf_trainer.environments.sandboxed import run_in_sandbox

SAYS = '{"reward": 1}'
COMMANDS: Mapping[str, Sequence[str]] = {
    "sh": ("sh", "-c", f"echo '{SAYS}'"),
    "python": ("/usr/bin/python3", "-c", f"print('{SAYS}')"),
}


async def start_plain(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().strip() == SAYS


async def start_command(command: Sequence[str]) -> None:
    ran = await run_in_sandbox(command)
    assert (ran.code, ran.output.strip()) == (0, SAYS)


async def start_program(command: Sequence[str]) -> None:
    process = await AgentProcess.start(Environment(program=tuple(command)), {"prompt": "x"}, {})
    try:
        assert await process.ended() == 1.0
    finally:
        await process.end()


KINDS: Mapping[str, Callable[[Sequence[str]], Awaitable[None]]] = {
    "plain": start_plain,
    "command": start_command,
    "program": start_program,
}


async def measure(start: Callable[[], Awaitable[None]], starts: int, at_once: int) -> dict[str, float]:
    places, taken = asyncio.Semaphore(at_once), list[float]()

    async def timed() -> None:
        async with places:
            began = time.perf_counter()
            await start()
            taken.append(1e3 * (time.perf_counter() - began))

    await start()  # imports, and pages of the files
    await asyncio.gather(*(timed() for _ in range(starts)))
    cuts = quantiles(taken, n=20)
    return {"p50_ms": cuts[9], "p95_ms": cuts[18], "most_ms": max(taken)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    for kind, start in KINDS.items():
        for name, command in COMMANDS.items():
            made = asyncio.run(measure(partial(start, command), options.starts, options.at_once))
            line = {"case": f"{kind} {name}", **{figure: round(value, 1) for figure, value in made.items()}}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

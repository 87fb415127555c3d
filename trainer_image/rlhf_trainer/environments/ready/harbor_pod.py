"""Plays an episode of a Harbor task in a pod of `spec.sandbox`, whose image has what the task's Dockerfile makes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..episode_sandbox import EpisodeSandbox, open_sandbox
from ..sandboxed import Ran
from .harbor_box import REWARDS, WALL, Box, in_task
from .harbor_dockerfile import Copy
from .harbor_files import LOGS, TESTS, Task

_MAKE = 'mkdir -p "$@" && find "$@" -mindepth 1 -delete && mkdir -p "$0"'
"""Folders that are there, and empty, and one in them."""
_AS_ROOT = "{spec: {securityContext: {runAsUser: 0, runAsNonRoot: false}}}"


class PodBox(Box):
    """All files of the pod."""

    def __init__(self, task: Task, sandbox: EpisodeSandbox) -> None:
        super().__init__(task)
        self._sandbox = sandbox

    @classmethod
    async def open(cls, task: Task) -> "PodBox":
        """Claims a pod. Raises RuntimeError where the task's files cannot be written there, SandboxLost."""
        box = cls(task, await open_sandbox())
        for copy in task.copies:
            files = dict(_files_of(copy))
            await box._sandbox.write(files)
            if copy.mode is not None:
                await box._sandbox.run(("chmod", f"{copy.mode:o}", *files))
        return box

    async def run(self, command: Sequence[str], seconds: int) -> Ran:
        return await self._run(command, WALL * seconds, {})

    async def _run(self, command: Sequence[str], seconds: float, variables: Mapping[str, str]) -> Ran:
        given = {**self.task.variables, **variables}
        words = (f"{name}={value}" for name, value in given.items())
        return await self._sandbox.run(("env", *words, *in_task(self.task, command)), seconds=seconds)

    async def _run_of_task(
        self, script_text: str, at: str, folder: Path, seconds: float, variables: Mapping[str, str]
    ) -> Ran:
        """Raises RuntimeError where the pod's user may not make the folders."""
        tops, inner = ((at, LOGS), f"{LOGS}/verifier") if at == TESTS else ((at,), at)
        if (await self._sandbox.run(("sh", "-c", _MAKE, inner, *tops))).code != 0:
            remedy = f"make them in the image for every user, or set spec.sandbox.pods.template to {_AS_ROOT}"
            raise RuntimeError(f"the sandbox's user may not make {', '.join(tops)}: {remedy}")
        files = {f"{at}/{file.relative_to(folder)}": file for file in folder.rglob("*") if file.is_file()}
        await self._sandbox.write(files)
        return await self._run(("bash", "-c", script_text), seconds, variables)

    async def _read_rewards(self) -> dict[str, str]:
        texts = dict[str, str]()
        for name in REWARDS:
            ran = await self._sandbox.run(("cat", f"{LOGS}/verifier/{name}"))
            texts |= {name: ran.output} if ran.code == 0 else {}
        return texts

    async def remove(self) -> None:
        await self._sandbox.close()


def _files_of(copy: Copy) -> Iterator[tuple[str, Path]]:
    if copy.source.is_file():
        yield copy.target, copy.source
    for file in copy.source.rglob("*"):
        if file.is_file():
            yield f"{copy.target}/{file.relative_to(copy.source)}", file

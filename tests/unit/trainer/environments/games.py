"""Environments of these tests: the class names say what each does."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_trainer.environments import sandboxed
from rlhf_trainer.environments.episode_sandbox import open_sandbox
from rlhf_trainer.environments.step import Step
from rlhf_trainer.process.sandbox import Place, sandbox_limits

_LIFE = random.SystemRandom().random()
"""Of this process alone."""


class Guess:
    """A number from `low` to `high` is to be guessed; the row's `secret` is it."""

    def __init__(self, low: int = 1, high: int = 9) -> None:
        self._low, self._high = low, high

    def reset(self, row: dict[str, Any]) -> str:
        self._secret = int(row.get("secret", 5))
        return f"A number from {self._low} to {self._high}?"

    def step(self, message: dict[str, Any]) -> Step:
        digits = "".join(c for c in message["content"] if c.isdigit())
        guess = int(digits[:6] or 0)
        if guess == self._secret:
            return Step(reward=1.0, done=True)
        return Step("Higher." if guess < self._secret else "Lower.", 0.25 if digits else 0.0)


class AsyncGuess(Guess):
    async def step(self, message: dict[str, Any]) -> Step:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(message)


class Waits(AsyncGuess):
    """In the folder of the row's `hold`: its step makes `begun` and waits for `go`."""

    def reset(self, row: dict[str, Any]) -> str:
        self._hold = Path(row["hold"]) if "hold" in row else None
        return super().reset(row)

    async def step(self, message: dict[str, Any]) -> Step:
        if self._hold:
            (self._hold / "begun").touch()
            while not (self._hold / "go").exists():
                await asyncio.sleep(0.01)
        return await super().step(message)


class Calculator:
    """TRL's shape: tools, and a reward that is read at the end."""

    def reset(self, answer: str = "", **row: Any) -> str | None:
        self.reward, self._answer = 0.0, answer
        return row.get("hint")

    def add(self, a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        self.reward += 0.5
        return a + b

    def fail(self) -> str:
        """Raises."""
        raise ValueError("no such thing")


class Says(Guess):
    def say(self, text: str) -> str:
        """Repeats a text.

        Args:
            text: It.
        """
        return text


class Echoes(Says):
    """Says what it was told, whatever that is."""

    def step(self, message: dict[str, Any]) -> Step:
        return Step(f" {message['content']}<|im_end|>\n", 0.5)


class NativeTools(Guess):
    """Both a step and a tool."""

    async def open_box(self, place: str) -> dict[str, str]:
        """Contents of a box.

        Args:
            place: Its name.
        """
        return {"place": place, "secret": str(self._secret)}


class Misbehaves(Guess):
    """Does what the turn's text says."""

    def step(self, message: dict[str, Any]) -> Any:
        match message["content"]:
            case "hang":
                time.sleep(3600)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.1)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(3)
            case "fork":
                if os.fork():
                    os._exit(3)
                time.sleep(3600)
            case "raise":
                raise KeyError("grade")
            case "refused":
                raise ConnectionRefusedError("the database")
            case "memory":
                raise MemoryError
            case "nan":
                return Step("x", float("nan"))
            case "infinite":
                return "x", float("inf"), False
            case "masked":
                return "x", np.ma.masked, False
            case "huge":
                return "x", 1e31, False
            case "word":
                return "x", "1", False
            case "none":
                return None
            case "flood":
                return Step("x" * (5 << 20))
            case "print":
                os.write(1, b"not a reply\n")
                print("neither", flush=True)
                return Step("printed")
            case "assistant":
                return Step([{"role": "assistant", "content": "I"}])
            case "object":
                return Step([{"role": "user", "content": "x", "more": object()}])
            case "empty":
                return Step([])
            case "surrogate":
                return Step([{"role": "user", "content": "x", "name": "\ud800"}])
            case "cancelled":
                raise asyncio.CancelledError
            case "wordless":
                raise Wordless
            case "truth":
                return Step("", np.float32(0.5), np.bool_(True))  # type: ignore[arg-type]
            case "forge":
                for descriptor in range(3, 30):
                    with suppress(OSError):
                        os.write(descriptor, b'{"id": 0}\n{"id": 1}\n')
        return super().step(message)


class Wordless(BaseException):
    """An error of no usual kind."""

    def __str__(self) -> str:
        raise KeyError


class OpensWith(Guess):
    """Opens with what the row says, as JSON."""

    def reset(self, row: dict[str, Any]) -> Any:
        return json.loads(row["opening"])


class Runs:
    """Opens with what the row's code names `result`; runs a turn as code, and replies with its `result`."""

    def reset(self, row: dict[str, Any]) -> str:
        return str(_run(row.get("code", "result = ''")))

    def step(self, message: dict[str, Any]) -> Step:
        return Step(str(_run(message["content"])))


def _run(code: str) -> Any:
    names = dict[str, Any]()
    exec(code, names)
    return names["result"]


class Observes(Guess):
    """Replies what it can reach."""

    def reset(self, row: dict[str, Any]) -> str:
        self._row = row
        return "Go."

    def step(self, _message: dict[str, Any]) -> Step:
        return Step(json.dumps({"keys": self._keys(), "file": self._file(), "network": self._connects()}))

    def _keys(self) -> bool:
        read = b""
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                read += file.read_bytes()
        return b"a-secret" in read

    def _file(self) -> str:
        with suppress(OSError):
            return Path(self._row["file"]).read_text()
        return ""

    def _connects(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._row["port"]), 5).close()
            return True
        return False


class ClosesNever(Guess):
    def close(self) -> None:
        time.sleep(3600)


class ClosesWithItsProcess(Guess):
    def close(self) -> None:
        sys.exit(3)


class DiesWhereTheRowSays(Guess):
    """Its process ends over each turn of some rows, while the turns of others are under way."""

    def reset(self, row: dict[str, Any]) -> str:
        self._dies = bool(row["dies"])
        return super().reset(row)

    async def step(self, _message: dict[str, Any]) -> Step:  # type: ignore[override]
        await asyncio.sleep(0.1)
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.2)
        return Step(reward=1.0, done=True)


class AsyncMisbehaves(Misbehaves):
    async def step(self, message: dict[str, Any]) -> Any:
        if message["content"] == "wait":
            await asyncio.sleep(3600)
        return super().step(message)


class Counts(Guess):
    """Says how many turns it has read, and takes its time for it."""

    _turn = 0

    async def step(self, message: dict[str, Any]) -> Step:  # type: ignore[override]
        self._turn += 1
        await asyncio.sleep(0.2)
        return super().step(message)._replace(messages=f"Turn {self._turn}.")


class OpensOtherwise(Guess):
    def reset(self, row: dict[str, Any]) -> str:
        return super().reset(row) + str(random.random())


class DiesOnce(Guess):
    """Its process dies in the second turn of the first life; the row names the file that says so."""

    def reset(self, row: dict[str, Any]) -> str:
        self._mark, self._turn = Path(row["mark"]), 0
        return super().reset(row)

    def step(self, message: dict[str, Any]) -> Step:
        self._turn += 1
        if self._turn == 2 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(message)


class Forgets(DiesOnce):
    """Replies otherwise in another process."""

    def step(self, message: dict[str, Any]) -> Step:
        made = super().step(message)
        return made._replace(messages=f"{made.messages} {_LIFE}")


class NoReset:
    def step(self, _message: dict[str, Any]) -> Step:
        return Step(done=True)


class OnlyReset:
    def reset(self, _row: dict[str, Any]) -> None:
        return None


class ToolWithoutTypes(OnlyReset):
    def add(self, a, b):  # type: ignore[no-untyped-def]
        return a + b


def function(**_row: Any) -> None:
    """Not a class."""


class Sandboxes:
    """Runs a turn as a command in a sandbox, and replies with its output, or that it was ended; one command at a time,
    of whatever episode."""

    async def reset(self, _row: dict[str, Any]) -> str:
        os.cpu_count = lambda: 1
        return "Go."

    async def step(self, message: dict[str, Any]) -> Step:
        ran = await sandboxed.run_at(
            Place(), ("sh", "-c", message["content"]), sandbox_limits(512, 5), seconds=100
        )
        return Step("ended" if ran.code is None else ran.output.strip())


class Boxed:
    """Runs each turn as a shell's text in the episode's sandbox, where files stay."""

    async def reset(self, row: dict[str, Any]) -> None:
        self._sandbox = await open_sandbox()
        await self._sandbox.write({"row.txt": row["text"]})

    async def step(self, message: dict[str, Any]) -> Step:
        ran = await self._sandbox.run(("sh", "-c", message["content"]), seconds=20)
        return Step(f"{ran.code}: {ran.output}", 1.0)

"""Plays tasks of a verifiers environment by its own `run_episode`, in this process: its model client asks the policy as
any program does, and its rubric gives the reward."""

import asyncio
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rlhf_api.errors.problem import show
from rlhf_api.host.imports import described
from rlhf_api.host.job_files import FOLDER
from rlhf_api.host.tasks import end_all

from ..adapter import Unfit, checked_reward
from ..program.conversation import Conversation
from ..program.process import OVER
from ..program.server import MODEL, Access
from ..turn_text import TurnText
from .row_seed import seed_of

try:
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.runtimes import PrimeConfig
    from verifiers.v1.runtimes import subprocess as runtimes
    from verifiers.v1.utils.loaders import env_config_type, load_environment

    from . import verifiers_harness
except ImportError as error:
    remedy = "make an environment for it, `python3 -m venv DIR && DIR/bin/pip install verifiers==0.4.0`"
    message = f"verifiers is missing; {remedy}, and set environment.python to DIR/bin/python ({error})"
    raise ImportError(message) from error

HARNESS = "rlhf_chat"
"""Name by which verifiers imports our harness."""
CUT = "max_total_tokens"
"""verifiers' name of a limit: an episode that ends so is judged as it is."""
_TASKS = 1000


class VerifiersAgents:
    """An environment. Its seats are played by a chat loop in this process (`verifiers_harness`), unless they have a
    harness of their own."""

    def __init__(self, *, taskset: Any, tasks: int = _TASKS, **settings: Any) -> None:
        """`taskset`: its id and settings; `settings`: other fields of the environment's configuration; `tasks`: how
        many of the taskset are played, at most. Raises Unfit."""
        sys.modules.setdefault(HARNESS, verifiers_harness)
        runtimes.CACHE_DIR = Path(tempfile.mkdtemp())  # folders of episodes; a home cannot be written in here
        places = (os.environ.get(FOLDER), str(Path.cwd()))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))  # for the processes of tools
        if not isinstance(taskset, dict) or not isinstance(taskset.get("id"), str):
            raise Unfit(f"needs settings.taskset with an id, such as {{id: textarena}}; got {show(taskset)}")
        if type(tasks) is not int or tasks < 1:
            raise Unfit(f"settings.tasks must be a whole number from 1 on; got {show(tasks)}")
        try:
            self._env = load_environment(_config({**settings, "taskset": taskset}))
            self._stream: Iterator[Any] = itertools.islice(self._env.taskset, tasks)
            self._tasks = [*itertools.islice(self._stream, 1 if self._env.taskset.INFINITE else None)]
        except Exception as error:
            raise Unfit(f"does not load: {described(error)}") from error
        if not self._tasks:
            raise Unfit(f"has no tasks; got settings.taskset {show(taskset)}")
        self._size = tasks if self._env.taskset.INFINITE else len(self._tasks)

    def serving(self) -> AbstractAsyncContextManager[None]:
        shared: AbstractAsyncContextManager[None] = self._env.serving()
        return shared

    async def start(self, row: Mapping[str, Any], access: Access) -> "VerifiersAgent":
        """An episode of the task that the row's seed counts to."""
        index = seed_of(row) % self._size
        self._tasks += itertools.islice(self._stream, max(0, index + 1 - len(self._tasks)))
        if index >= len(self._tasks):
            raise Unfit(f"the taskset has {len(self._tasks)} tasks; set settings.tasks to that")
        variable = f"RLHF_API_KEY_{access.url.split('/')[-2]}"
        os.environ[variable] = access.key  # by this word in its name, verifiers gives it to no program
        client = EvalClientConfig(base_url=access.url, api_key_var=variable)
        return VerifiersAgent(self._env, self._tasks[index], ModelContext(model=MODEL, client=client))


class VerifiersAgent:
    """An episode under way."""

    def __init__(self, env: Any, task: Any, context: Any) -> None:
        self._traces = list[Any]()
        playing = env.run_episode(task, context, on_trace=self._traces.append)
        self._playing = asyncio.ensure_future(playing)

    async def ended(self) -> float:
        return reward_of(await asyncio.shield(self._playing))

    def cut(self, conversation: Conversation) -> None:
        """Its traces end by a limit of their own: what waits for a turn is refused it, and the rubric is asked."""
        for trace in self._traces:
            trace.stop(CUT)
        conversation.reply(TurnText("", "", is_whole=False))
        conversation.end(OVER)

    async def end(self) -> None:
        await end_all([self._playing])


def reward_of(episode: Any) -> float:
    """The sum of its trained traces' rewards. Raises Unfit for an episode that failed, which has none."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        reason = f"{errors[-1].type}: {errors[-1].message}" if errors else "it is not ok"
        raise Unfit(f"verifiers' episode has failed: {reason[-1000:]}")
    return checked_reward(math.fsum(trace.reward for trace in episode.traces if trace.agent.trainable))


def _config(settings: dict[str, Any]) -> Any:
    """The environment's configuration, with our harness, on this machine, where nothing else is given for a seat."""
    kind = env_config_type(settings["taskset"]["id"], settings.get("id", ""))
    for name, field in kind.model_fields.items():
        if not isinstance(seat := field.default, AgentConfig):
            continue
        own: dict[str, Any] = {} if seat.harness is not None else {"harness": {"id": HARNESS}}
        if isinstance(seat.runtime, PrimeConfig):
            own["runtime"] = {"type": "subprocess"}
        settings[name] = {**own, **(settings.get(name) or {})}
    return kind.model_validate(settings)

"""A server of the OpenEnv package: one adds up numbers until their sum is the target that the seed decides. Run as
`python -m ... PORT`.
"""

import os
import random
import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import uvicorn

# What the package imports for its web page and for MCP, which an environment needs not.
for module in ("fastmcp", "fastmcp.client", "fastmcp.client.client", "gradio"):
    sys.modules.setdefault(module, MagicMock())
SERVER, TYPES = (import_module(f"openenv.core.env_server.{name}") for name in ("http_server", "types"))
INTERFACES = import_module("openenv.core.env_server.interfaces")


class Add(TYPES.Action):
    number: int
    note: str = ""


class Sum(TYPES.Observation):
    text: str


class Adding(INTERFACES.Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, most: int = 9, **_more: Any) -> Sum:
        self._target, self._sum = random.Random(seed).randint(1, most), 0
        return Sum(text=f"Make {self._target}.")

    def step(self, action: Add, **_more: Any) -> Sum:
        if action.number == -1:
            os._exit(1)
        if action.number == -2:
            raise KeyError("broken")
        self._sum += action.number
        return Sum(
            text=f"{self._sum}",
            reward=1.0 if self._sum == self._target else -0.5,
            done=self._sum >= self._target,
        )

    @property
    def state(self) -> Any:
        return TYPES.State()


if __name__ == "__main__":
    places = TYPES.ConcurrencyConfig(max_concurrent_envs=2)
    app = SERVER.create_fastapi_app(Adding, Add, Sum, concurrency_config=places)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")

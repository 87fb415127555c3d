"""The reward role's section of the manifest: a model and functions, services and programs, composed with weights."""

import re

from pydantic import Field, model_validator

from .base import Frozen, HttpUrl, ImportPath, NonNegativeFloat, Positive, RewardName, Variable
from .roles import ModelServerSpec

RESERVED_HEADERS = (
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
)
"""Headers that say how a request is sent."""


class RewardProgram(Frozen):
    """A command that reads a response on stdin, in a sandbox without network; exit code 0 scores 1, any other 0."""

    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    """The program and its arguments. It sees the job's directory as `/job`, and the dataset's row as `row.json`."""
    memory_megabytes: Positive = 512
    """Address space of each of its processes, of which there may be 32."""
    cpu_seconds: Positive = 10
    """Of each of its processes; more is the response's own doing, and `timeoutSeconds` without it a failure."""


class RewardFunction(Frozen):
    """A score of each response by a Python function, in processes of its own, by an HTTP service, or by a program."""

    name: RewardName | None = None
    """Its name in the metrics; the Python function's unless given."""
    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`; with `fineGrained` and a parameter `tokens` also a list of floats
    for each response."""
    url: HttpUrl | None = None
    """Address that responses are posted to, many at once; docs/rewards.md has the messages."""
    secret_headers: dict[str, Variable] = Field({}, max_length=16)
    """Headers of each request to `url`, such as Authorization: for each the environment variable of the reward role
    that holds its value, which no manifest and no log does."""
    program: RewardProgram | None = None
    weight: float = 1.0
    timeout_seconds: Positive = 30
    """Time limit of one call. One for several responses that fails is made again for each of them alone."""
    retries: int = Field(2, ge=0, le=100)
    """Tries of a response that failed, after the first, before it is left out of training."""
    concurrency: int = Field(4, ge=1, le=256)
    """Calls at once; of a Python function, in as many processes."""

    @model_validator(mode="after")
    def _scores_in_one_way(self) -> "RewardFunction":
        ways = [name for name in ("function", "url", "program") if getattr(self, name) is not None]
        if len(ways) != 1:
            seen = " and ".join(ways) or "none"
            raise ValueError(f"needs exactly one of function, url and program; got {seen}")
        if self.function is None and self.name is None:
            raise ValueError("needs a name, under which its scores stand in the metrics")
        return self

    @model_validator(mode="after")
    def _sends_what_it_may(self) -> "RewardFunction":
        if self.secret_headers and self.url is None:
            raise ValueError("secretHeaders are of requests to url, which is not given")
        for header, variable in self.secret_headers.items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,127}", header):
                raise ValueError(f"secretHeaders: must be words of letters, digits and -; got {header!r}")
            if header.lower() in RESERVED_HEADERS:
                raise ValueError(f"secretHeaders: {header} is the request's own; use another name")
            if variable.startswith("RLHF_"):
                raise ValueError(f"secretHeaders.{header}: {variable} is the operator's own and stays here")
        return self

    @property
    def metric(self) -> str:
        """Its name in the metrics."""
        return self.name or (self.function or "").partition(":")[2]


class Reward(ModelServerSpec):
    """The score of an answer: `modelWeight` x the reward model, plus the weighted functions."""

    model_weight: NonNegativeFloat = 1.0
    functions: tuple[RewardFunction, ...] = ()
    fine_grained: bool = False
    """Each token gets its own reward: the reward model, where there is one, has one output for each token (token
    classification), and functions may return a number for each."""
    bias: float = 0.0
    """Added to the total."""
    scale: float = 1.0
    """Factor of the total with its bias."""
    clip: tuple[float, float] | None = None
    """Bounds of the scaled total."""
    max_failed_share: float = Field(0.25, ge=0, lt=1)
    """Responses that could not be scored are left out. Above this share of those that are scored together the job is
    paused and they are tried again; `startupTimeoutSeconds` without progress end it."""

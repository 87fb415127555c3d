"""The reward role's section: models, functions, services and programs, combined with weights."""

import re
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ..field_types import Frozen, HttpUrl, ImportPath, NonNegativeFloat, Positive, RewardName, Variable
from ..numbers import LARGEST_SCORE
from .roles import ModelServerSpec

MODEL = "model"
"""Name of `spec.model.reward` in the metrics."""
ENVIRONMENT = "environment"
"""Name of an environment's rewards in the metrics, among those of a response."""
RESERVED_HEADERS = (
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
)
"""Headers that the HTTP client sets itself."""


class RewardProgram(Frozen):
    """A command that reads a response on stdin, in a sandbox without network; exit code 0 scores 1, any other
    `failureScore`."""

    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    """The program and its arguments. It sees the job's directory as `/job`, files of `spec.workspace` as `/files`,
    the row as `row.json`."""
    candidate: tuple[str, ...] | None = Field(None, min_length=1, max_length=64)
    """Command of a second sandbox without row and job, to execute responses in. Their stdins are each other's
    stdouts; the response is in the program's `response.txt`."""
    memory_megabytes: Positive = 512
    """Address space limit of each process, of which a sandbox may have 32."""
    cpu_seconds: Positive = 10
    """CPU time limit of each process."""


class RewardKind(Frozen):
    """The kinds of reward, a field each; an entry of `reward.functions` or `evaluation.metrics` has exactly one.
    `rlhf_trainer.scoring.kinds` is the table of their scorers."""

    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`; with `fineGrained` and a parameter `tokens` also a list of floats
    for each response."""
    url: HttpUrl | None = None
    """URL to which responses are posted, many at once (docs/guides/rewards.md)."""
    program: RewardProgram | None = None

    @property
    def kind(self) -> str:
        """Name of the field that is given."""
        (kind,) = self._given_kinds()
        return kind

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Names of the fields of which an entry has exactly one."""
        return tuple(RewardKind.model_fields)

    def _given_kinds(self) -> list[str]:
        return [name for name in self.kinds() if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _scores_in_one_way(self) -> Self:
        given = self._given_kinds()
        if len(given) != 1:
            *others, last = self.kinds()
            received = " and ".join(given) or "none"
            raise ValueError(f"needs exactly one of {', '.join(others)} and {last}; got {received}")
        return self


class ScoreFunction(RewardKind):
    """A score of each response by a Python function, in worker processes, by an HTTP service, or by a program."""

    name: RewardName | None = None
    """Name in the metrics; the Python function's unless given."""
    secret_headers: dict[str, Variable] = Field({}, max_length=16)
    """Headers of each request to `url`, such as Authorization: for each, the environment variable of the reward role
    that holds its value."""
    failure_score: float = Field(0.0, ge=-LARGEST_SCORE, le=LARGEST_SCORE)
    """Score of a response whose program fails, exceeds a limit or takes too long, or for which a function computes
    too long."""
    timeout_seconds: Positive = 30
    """Timeout of one call. A failed call of a function for several responses is repeated for each one alone."""
    retries: int = Field(2, ge=0, le=100)
    """Retries of a failed response before it is left out."""
    concurrency: int = Field(4, ge=1, le=256)
    """Concurrent calls; for a Python function, as many processes."""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if self.function is None and self.name is None:
            raise ValueError("needs a name, under which the metrics list its scores")
        return self

    @model_validator(mode="after")
    def _scores_failures_of_its_own(self) -> Self:
        if self.failure_score and self.url is not None:
            raise ValueError(
                "failureScore applies only to function and program; a url scores every response itself"
            )
        return self

    @model_validator(mode="after")
    def _sends_what_it_may(self) -> Self:
        if self.secret_headers and self.url is None:
            raise ValueError("secretHeaders applies only to url, which is not set; set it, or remove this")
        for header, variable in self.secret_headers.items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,127}", header):
                raise ValueError(f"secretHeaders: must be words of letters, digits and -; got {header!r}")
            if header.lower() in RESERVED_HEADERS:
                raise ValueError(f"secretHeaders: {header} is set by the request itself; use another name")
            if variable.startswith("RLHF_"):
                raise ValueError(
                    f"secretHeaders.{header}: {variable} is the operator's own and is never sent"
                )
        return self

    @property
    def metric(self) -> str:
        """Name in the metrics."""
        return self.name or (self.function or "").partition(":")[2]


class RewardFunction(ScoreFunction):
    """A score of each response by a Python function, an HTTP service or a program; added to the others with a
    weight."""

    weight: float = 1.0


class NamedRewardModel(Frozen):
    """A reward model beside `model.reward`, in the same processes."""

    name: RewardName
    """Name in the metrics."""
    model: str
    """Path or hub name."""
    weight: float = 1.0


class ScoringModel(NamedTuple):
    """A model that scores responses: its name in the metrics, the manifest's field of its path or hub name, that path,
    and its weight."""

    name: str
    where: str
    path: str
    weight: float


class Reward(ModelServerSpec):
    """The score of a response: `modelWeight` x the reward model, plus the weighted further models and functions."""

    model_weight: NonNegativeFloat = 1.0
    models: tuple[NamedRewardModel, ...] = Field((), max_length=16)
    """Reward models beside `model.reward`, or without it; their scores are added by weight."""
    functions: tuple[RewardFunction, ...] = ()
    fine_grained: bool = False
    """Token-level rewards: reward models have one output per token (token classification), and functions may return
    a number for each."""
    step_scores: Literal["each", "min", "product", "last"] | None = None
    """Reward models give each step the probability that it is right, as `process_reward` trains it. The reward is
    that of `each` step at its end (with `fineGrained`), or the `min`, `product` or `last` of a response's.
    """
    bias: float = 0.0
    """Added to the weighted sum."""
    scale: float = 1.0
    """Factor of the sum with its bias."""
    clip: tuple[float, float] | None = None
    """Lower and upper bound of the scaled sum."""
    max_failed_share: float = Field(0.25, ge=0, lt=1)
    """Responses without a score are left out. Above this share of a step the job is paused and they are retried;
    `startupTimeoutSeconds` without progress end it. Episodes that `spec.environment` failed at are left out too;
    above it the trainer is started again."""

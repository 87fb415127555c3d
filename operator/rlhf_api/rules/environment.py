"""Rules of `spec.environment`."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ..algorithms import algorithm_of, settings_of
from ..algorithms.policy_gradient import SampledResponses
from ..errors.problem import Problem, show
from ..field_types import READY_MADE
from ..spec import Spec

_WHERE = "spec.environment"


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of limits that contradict each other, and of fields that episodes of several turns do not go with."""
    environment = spec.environment
    if environment is None or not spec.graph.generates:
        return
    if environment.program is not None and environment.settings:
        message = "are keyword arguments of a class; give a program its settings as arguments; remove this"
        yield Problem(f"{_WHERE}.settings", f"{message}; got {show(environment.settings)}")
    if environment.program is not None and environment.python is not None:
        message = "is of a class; name a program's interpreter as the first word of program; remove this"
        yield Problem(f"{_WHERE}.python", f"{message}; got {show(environment.python)}")
    turn, tokens = spec.sampling.max_new_tokens, environment.max_tokens
    if tokens < turn:
        message = (
            f"a turn alone may have {turn} tokens (sampling.maxNewTokens); use at least that; got {tokens}"
        )
        yield Problem(f"{_WHERE}.maxTokens", message)
    if environment.seconds < environment.turn_seconds:
        message = f"one call may take {environment.turn_seconds} s (turnSeconds); use at least that"
        yield Problem(f"{_WHERE}.seconds", f"{message}; got {environment.seconds}")
    if environment.workers > environment.most_episodes:
        message = f"only {environment.most_episodes} episodes are played at once (parallel); use at most that"
        yield Problem(f"{_WHERE}.workers", f"{message}; got {environment.workers}")
    if environment.path == READY_MADE["openenv"] and not environment.network:
        message = "an OpenEnv server is reached over the network; use true; got false"
        yield Problem(f"{_WHERE}.network", message)
    if environment.replicas and spec.generator.shared_with_trainer and spec.trainer.ranks > 1:
        message = "each of several ranks that sample turns has environments beside it; use generators, or 0"
        yield Problem(f"{_WHERE}.replicas", f"{message}; got {environment.replicas}")
    yield from _of_one_turn(spec)


def _of_one_turn(spec: Spec) -> Iterator[Problem]:
    """Fields of which only responses of one turn are supported."""
    if spec.reward.fine_grained:
        message = "is not supported with spec.environment, whose rewards are of turns already; use false"
        yield Problem("spec.reward.fineGrained", f"{message}; got true")
    if spec.reward.step_scores is not None:
        message = "is not supported with spec.environment, whose responses have turns; remove it"
        yield Problem("spec.reward.stepScores", f"{message}; got {show(spec.reward.step_scores)}")
    settings = settings_of(spec)
    if isinstance(settings, SampledResponses) and settings.overlong_buffer:
        where = f"spec.{to_camel(algorithm_of(spec).name)}.overlongBuffer"
        message = (
            "is of responses of one turn; give long episodes less reward in the environment itself; use 0"
        )
        yield Problem(where, f"{message}; got {show(settings.overlong_buffer)}")

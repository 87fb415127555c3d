"""Evaluation of a policy: samples responses to held-out prompts and scores them by a function not used in training."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.evaluation import NO_PENALTIES

from ..data.prompts import prompts
from ..data.sampling_request import SamplingRequest
from ..data.stop_strings import StopStrings
from ..data.vision import ImageReader
from ..dispatch.roster import Stopped, Unavailable
from ..maths.best_of import best_of
from ..ranks.context import TrainerContext
from ..scoring.client import ScoringFailed
from ..scoring.reward_client import Unscored
from ..tensors.records import Prompt, Rollout, Sequences
from .in_flight.requests import Responses
from .responses import pack

log = logging.getLogger(__name__)

SAMPLES = 4
"""Responses per evaluation saved as text, for people to read."""

Judge = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]
"""(sequences, their dataset rows) -> the evaluation function's scores: float32 [N], NaN on failure."""
Respond = Callable[[list[Prompt], SamplingRequest], Responses]
"""Responses to all prompts, in their order; a collective."""


def evaluate(
    ctx: TrainerContext,
    held_out: Mapping[str, Sequence[Row]],
    respond: Respond,
    judge: Judge | None,
    reader: ImageReader | None = None,
    *,
    first: bool = False,
) -> list[dict[str, Any]]:
    """Metrics of each held-out set, on the rank that has the judge; of episodes without a judge, whose scores are their
    rewards, on rank 0. A set that cannot be judged has the reason as `failed`, and a mean of NaN. `reader`: of a policy
    that reads images. A collective.

    Raises Stopped, on every rank; and InvalidJob if this is the `first` evaluation and the job's own function is at
    fault: later that does not end the training.
    """
    lines, penalties = [], ctx.spec.evaluation.penalties if ctx.spec.evaluation else NO_PENALTIES
    for number, section in enumerate(ctx.spec.evaluation_sets()):
        rows = held_out[section.name]
        # Data epochs below 0: these ids, and so the seeds of requests, differ from all training prompts'.
        places = [(-1 - number, row) for row in range(len(rows))]
        batch = prompts(rows, places, ctx.tokenizer, ctx.spec.data, reader=reader)
        # Not validated again: temperature 0 is invalid for training.
        update = {"responses_per_prompt": section.samples, "temperature": section.temperature}
        sampling = ctx.spec.sampling.model_copy(update=update)
        responses = respond(batch, SamplingRequest(sampling, penalties, masks=False))
        judged = _judged(ctx, judge, responses, first=first)
        if judged is None:
            continue
        line: dict[str, Any] = {"set": section.name}
        rollouts = responses.rollouts
        if rollouts:
            line["weight_version"] = min(min(rollout.versions) for rollout in rollouts)
        if judged.failed:
            log.error("the evaluation of set %s failed: %s", section.name, judged.failed)
            line["failed"] = judged.failed
        places_of = {prompt.id: place for place, prompt in enumerate(batch)}
        groups = torch.tensor([places_of[r.prompt.id] for r in rollouts], dtype=torch.int64)
        # The first response to each of the first prompts.
        shown = [int((groups == place).int().argmax()) for place in groups.unique()[:SAMPLES]]
        samples = [_sample(ctx, rollouts[i], float(judged.scores[i])) for i in shown]
        lines.append({**line, **score_metrics(judged.scores, groups), "samples": samples})
    return lines


def score_metrics(scores: Tensor, groups: Tensor) -> dict[str, float]:
    """Mean, count and best-of-k over scored responses: `mean`, `count` and, if prompts have n > 1 responses,
    `best_of_<k>` for n and the powers of 2 below. `scores` float32 [N], `groups` int64 [N]."""
    judged = ~scores.isnan()
    scores, groups = scores[judged], groups[judged]
    if not len(scores):
        return {"mean": float("nan"), "count": 0}
    most = int(groups.unique(return_counts=True)[1].max())
    sizes = sorted({2**i for i in range(1, most.bit_length())} | {most} - {1})
    return {
        "mean": float(scores.double().mean()),
        "count": len(scores),
        **{f"best_of_{k}": best_of(scores, groups, k) for k in sizes},
    }


@dataclass(frozen=True)
class _Judged:
    """Scores of a set's responses, float32 [N]: all NaN if the set `failed`, for that reason."""

    scores: Tensor
    failed: str = ""


def _judged(ctx: TrainerContext, judge: Judge | None, responses: Responses, *, first: bool) -> _Judged | None:
    """The scores, on the rank that judges. The others wait for it: they must not begin the next set where it was
    stopped. Raises Stopped on every rank."""
    judged = list[_Judged]()
    judges = ctx.ranks.first if judge is None and _by_environment(ctx) else judge is not None

    def stopped() -> bool:
        try:
            judged.extend([_scored(judge, responses, first=first)] if judges else ())
        except Stopped:
            return True
        return False

    if ctx.ranks.agree(stopped):
        raise Stopped("stopped while held-out responses were judged")
    return judged[0] if judged else None


def _by_environment(ctx: TrainerContext) -> bool:
    """True if the rewards of episodes are the scores, since the job has no function that judges them."""
    return ctx.spec.evaluation is not None and ctx.spec.evaluation.function is None


def _scored(judge: Judge | None, responses: Responses, *, first: bool) -> _Judged:
    """The judge's scores, without one the environment's; an episode that ended with a problem has none."""
    rollouts = responses.rollouts
    problems = [r.outcome.problem if r.outcome else "" for r in rollouts]
    whole = [i for i, problem in enumerate(problems) if not problem]
    scores = torch.full((len(rollouts),), nan)
    if not whole:
        return _Judged(scores, "; ".join(dict.fromkeys([*responses.refused.values(), *problems])))
    try:
        scores[whole] = _ask(judge, [rollouts[i] for i in whole])
    except (Unscored, Unavailable, ScoringFailed, InvalidJob) as error:
        if first and isinstance(error, InvalidJob):
            raise
        return _Judged(scores, str(error))
    return _Judged(scores)


def _ask(judge: Judge | None, rollouts: Sequence[Rollout]) -> Tensor:
    if judge is not None:
        return judge(pack(rollouts), [dict(r.prompt.row) for r in rollouts])
    return torch.tensor([r.outcome.reward if r.outcome else nan for r in rollouts])


def _sample(ctx: TrainerContext, rollout: Rollout, score: float) -> dict[str, Any]:
    return {
        "prompt": rollout.prompt.row["prompt"],
        "answer": StopStrings(ctx.tokenizer, ctx.spec.sampling.stop).text(
            rollout.prompt.tokens, rollout.tokens
        ),
        "score": None if score != score else score,
    }

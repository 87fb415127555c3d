"""Evaluation of a policy: samples responses to held-out prompts and scores them by metrics not used in training."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.evaluation import NO_PENALTIES, ONLY_METRIC

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
"""(sequences, their dataset rows) -> a metric's scores: float32 [N], NaN on failure."""
Respond = Callable[[list[Prompt], SamplingRequest], Responses]
"""Responses to all prompts, in their order; a collective."""


def evaluate(
    ctx: TrainerContext,
    held_out: Mapping[str, Sequence[Row]],
    respond: Respond,
    judges: Mapping[str, Judge],
    reader: ImageReader | None = None,
    *,
    first: bool = False,
) -> list[dict[str, Any]]:
    """Figures of each held-out set, on the rank that has `judges`, by the metrics' names; of episodes without any,
    whose scores are their rewards, on rank 0. A metric that cannot be judged has the reason as `failed`, and a mean of
    NaN. `reader`: of a policy that reads images. A collective.

    Raises Stopped, on every rank; and InvalidJob if this is the `first` evaluation and the job's own function is at
    fault: later that does not end the training.
    """
    has_names = ctx.spec.evaluation is not None and ctx.spec.evaluation.metrics is not None
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
        judged = _judged(ctx, judges, responses, first=first)
        if not judged:
            continue
        line: dict[str, Any] = {"set": section.name}
        rollouts = responses.rollouts
        if rollouts:
            line["weight_version"] = min(min(rollout.versions) for rollout in rollouts)
        for name, scored in judged.items():
            if scored.failed:
                log.error("the %s of set %s failed: %s", name, section.name, scored.failed)
        places_of = {prompt.id: place for place, prompt in enumerate(batch)}
        groups = torch.tensor([places_of[r.prompt.id] for r in rollouts], dtype=torch.int64)
        # The first response to each of the first prompts.
        shown = [int((groups == place).int().argmax()) for place in groups.unique()[:SAMPLES]]
        samples = [_sample(ctx, rollouts[i], judged, i, has_names=has_names) for i in shown]
        lines.append({**line, **metric_figures(judged, groups, has_names=has_names), "samples": samples})
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
class Judged:
    """A metric's scores of a set's responses, float32 [N]: all NaN if it `failed`, for that reason."""

    scores: Tensor
    failed: str = ""


def metric_figures(judged: Mapping[str, Judged], groups: Tensor, *, has_names: bool) -> dict[str, Any]:
    """Figures of the first metric, which ranks checkpoints, and if metrics have names those of each as
    `<name>_<figure>`: those of `score_metrics`, and `failed`, the reason, of one that failed. `groups` int64 [N]."""
    figures = {
        name: ({"failed": scored.failed} if scored.failed else {}) | score_metrics(scored.scores, groups)
        for name, scored in judged.items()
    }
    of_first = dict[str, Any](next(iter(figures.values())))
    named = ((name, each) for name, each in figures.items() if has_names)
    return of_first | {f"{name}_{figure}": value for name, each in named for figure, value in each.items()}


def _judged(
    ctx: TrainerContext, judges: Mapping[str, Judge], responses: Responses, *, first: bool
) -> dict[str, Judged]:
    """The scores by each metric, on the rank that judges. The others wait for it: they must not begin the next set
    where it was stopped. Raises Stopped on every rank."""
    judged = dict[str, Judged]()
    own = {ONLY_METRIC: None} if ctx.ranks.first and _by_environment(ctx) else {}

    def stopped() -> bool:
        try:
            for name, judge in (judges or own).items():
                judged[name] = _scored(judge, responses, first=first)
        except Stopped:
            return True
        return False

    if ctx.ranks.agree(stopped):
        raise Stopped("stopped while held-out responses were judged")
    return judged


def _by_environment(ctx: TrainerContext) -> bool:
    """True if the rewards of episodes are the scores, since the job has no metrics that judge them."""
    return ctx.spec.evaluation is not None and not ctx.spec.evaluation.placed_metrics


def _scored(judge: Judge | None, responses: Responses, *, first: bool) -> Judged:
    """The judge's scores, without one the environment's; an episode that ended with a problem has none."""
    rollouts = responses.rollouts
    problems = [r.outcome.problem if r.outcome else "" for r in rollouts]
    whole = [i for i, problem in enumerate(problems) if not problem]
    scores = torch.full((len(rollouts),), nan)
    if not whole:
        return Judged(scores, "; ".join(dict.fromkeys([*responses.refused.values(), *problems])))
    try:
        scores[whole] = _ask(judge, [rollouts[i] for i in whole])
    except (Unscored, Unavailable, ScoringFailed, InvalidJob) as error:
        if first and isinstance(error, InvalidJob):
            raise
        return Judged(scores, str(error))
    return Judged(scores)


def _ask(judge: Judge | None, rollouts: Sequence[Rollout]) -> Tensor:
    if judge is not None:
        return judge(pack(rollouts), [dict(r.prompt.row) for r in rollouts])
    return torch.tensor([r.outcome.reward if r.outcome else nan for r in rollouts])


def _sample(
    ctx: TrainerContext, rollout: Rollout, judged: Mapping[str, Judged], place: int, *, has_names: bool
) -> dict[str, Any]:
    """A response, and its score by the first metric; if metrics have names, by each."""
    values = {name: float(each.scores[place]) for name, each in judged.items()}
    scores = {name: None if value != value else value for name, value in values.items()}
    return {
        "prompt": rollout.prompt.row["prompt"],
        "answer": StopStrings(ctx.tokenizer, ctx.spec.sampling.stop).text(
            rollout.prompt.tokens, rollout.tokens
        ),
        "score": next(iter(scores.values())),
    } | ({"scores": scores} if has_names else {})

"""Rank 0's calls to the roles that score and infer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from torch import Tensor

from rlhf_api.graph import Graph
from rlhf_api.roles import Role

from ..context import TrainerContext
from ..graph.executor import RemoteCall
from ..records import Sequences
from ..scoring.client import Scorer
from ..scoring.messages import LOGPROBS_ROUTE, SCORE_ROUTE
from ..scoring.reward_client import RewardClient
from .evaluation import Judge


@dataclass(frozen=True)
class Remote:
    """Calls of other roles; none on ranks other than 0."""

    nodes: Mapping[str, RemoteCall] = field(default_factory=dict)
    """The calls, by the names of the graph's nodes that they answer."""
    judge: Judge | None = None
    reward: RewardClient | None = None
    """Client of the reward role, which has the metrics of the scores and the reasons of missing ones."""

    @classmethod
    def of(cls, ctx: TrainerContext, graph: Graph) -> Self:
        if ctx.services is None:
            return cls()
        nodes, reward = dict[str, RemoteCall](), reward_client(ctx)
        for node in graph.prepare:
            role = graph.remote(node)
            if role is not None and role.row.work == "score":
                nodes[node.name] = partial(_scores, reward, array=node.writes[0])
            elif role is not None:
                nodes[node.name] = partial(_logprobs, scorer(ctx, role))
        return cls(nodes, partial(_judged, reward_client(ctx, pauses=False)), reward)


def scorer(ctx: TrainerContext, role: Role) -> Scorer:
    """Rank 0's client of a role that scores or infers."""
    assert ctx.services is not None
    section = ctx.spec.model_server(role)
    return Scorer(
        role,
        SCORE_ROUTE if role.row.work == "score" else LOGPROBS_ROUTE,
        http=ctx.services.http,
        roster=ctx.services.roster,
        chunk_tokens=section.micro_batch(ctx.spec.trainer),
        timeout=section.timeout_seconds,
        patience=section.startup_timeout_seconds,
    )


def reward_client(ctx: TrainerContext, *, pauses: bool = True) -> RewardClient:
    """Rank 0's client of the reward role, which tolerates failed responses. `pauses`: the job waits for responses that
    cannot be scored; an evaluation fails in place of that."""
    assert ctx.services is not None
    section, roster = ctx.spec.reward, ctx.services.roster
    return RewardClient(
        scorer(ctx, Role.REWARD),
        max_failed_share=section.max_failed_share,
        patience=section.startup_timeout_seconds if pauses else 0.0,
        stopping=lambda: roster.stopping,
        report=lambda activity: ctx.report(activity=activity),
    )


def _scores(
    reward: RewardClient, sequences: Sequences, rows: Sequence[Mapping[str, Any]], *, array: str
) -> Tensor:
    return reward.ask(sequences, array, rows)


def _judged(judge: RewardClient, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Scores of an evaluation set, whose failures are counted against its own responses alone."""
    judge.take_metrics()
    return judge.ask(sequences, "scores", rows, judge=True)


def _logprobs(reference: Scorer, sequences: Sequences, _rows: Sequence[Mapping[str, Any]]) -> Tensor:
    return reference.ask(sequences, "logprobs")

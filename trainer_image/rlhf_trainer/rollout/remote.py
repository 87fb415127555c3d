"""Rank 0's calls to the roles that score and infer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from torch import Tensor

from rlhf_api.algorithms import teacher_top_k
from rlhf_api.contract.run import process_name
from rlhf_api.contract.teachers import Share, shares_of
from rlhf_api.graph import REFERENCE_TOP, TEACHER, Graph, Node, reward_column
from rlhf_api.roles import Role
from rlhf_api.sections.evaluation import EvaluationMetric
from rlhf_api.sections.reward import Reward

from ..graph.executor import RemoteCall
from ..maths.rewards import scaled_scores
from ..ranks.context import TrainerContext
from ..scoring.call_queue import MOST_PER_CALL
from ..scoring.client import AHEAD, Scorer
from ..scoring.messages import LOGPROBS_ROUTE, SCORE_ROUTE, Part, judge_part
from ..scoring.reward_client import RewardClient
from ..scoring.rewards import to_float32
from ..tensors.records import Prompt, Sequences
from ..tensors.top_tokens import known_tokens
from .evaluation import Judge
from .partial_rollout import Ended, Response, nobody
from .responses import flags_of
from .teachers import Teachers


@dataclass(frozen=True)
class Remote:
    """Calls of other roles; none on ranks other than 0."""

    nodes: Mapping[str, RemoteCall] = field(default_factory=dict)
    """The calls, by the names of the graph's nodes that they answer."""
    judges: Mapping[str, Judge] = field(default_factory=dict)
    """Scores of an evaluation set, by the names of the evaluation's metrics, in their order."""
    reward: RewardClient | None = None
    """Client of the reward role, which has the metrics of the scores and the reasons of missing ones."""
    judging: Sequence[RewardClient] = ()
    """Clients of the evaluation's metrics."""

    @classmethod
    def of(cls, ctx: TrainerContext, graph: Graph) -> Self:
        if ctx.services is None:
            return cls()
        nodes, reward = dict[str, RemoteCall](), None
        for node in graph.prepare:
            role = graph.remote(node)
            if role is not None and role.row.work == "score":
                reward = reward_client(
                    ctx, array="token_scores" if ctx.spec.reward.fine_grained else "scores"
                )
                nodes[node.name] = partial(_scores, reward, ctx.spec.reward, node.writes)
            elif role is not None:
                nodes[node.name] = _inference(ctx, node, role)
        metrics = ctx.spec.evaluation.placed_metrics.values() if ctx.spec.evaluation else ()
        judging = {metric.metric: judge_client(ctx, metric) for metric in metrics}
        judges = {name: partial(_judged, client) for name, client in judging.items()}
        return cls(nodes, judges, reward, tuple(judging.values()))


def begin_scoring(*clients: RewardClient | None) -> Ended:
    """Has the clients that there are score each response when it has ended, while the generators go on with others. An
    episode that ended with a problem is not scored."""
    given = [client for client in clients if client is not None]
    if not given:
        return nobody

    def begin(prompt: Prompt, response: Response) -> None:
        if response.outcome is None or not response.outcome.problem:
            one = Sequences.pack([(prompt.tokens, response.tokens)])
            sampled, branches = flags_of([response])
            for client in given:
                client.begin(replace(one, sampled=sampled, branches=branches), prompt.row)

    return begin


def scorer(ctx: TrainerContext, role: Role, at_once: int = AHEAD, most_joined: int = 1) -> Scorer:
    """Rank 0's client of a role that scores or infers; `at_once` and `most_joined` as for `Scorer`."""
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
        at_once=at_once,
        most_joined=most_joined,
        report=lambda activity: ctx.report(activity=activity),
        left=lambda count: ctx.report(unscored=count) if role is Role.REWARD else None,
    )


def reward_client(ctx: TrainerContext, *, array: str) -> RewardClient:
    """Rank 0's client of the job's rewards, which tolerates failed responses."""
    section = ctx.spec.reward
    functions = section.functions
    return _client(
        ctx,
        array,
        functions=(Part.FUNCTIONS, max(f.concurrency for f in functions)) if functions else None,
        model=Part.MODEL if ctx.spec.reward_models else None,
        patience=section.startup_timeout_seconds,
    )


def judge_client(ctx: TrainerContext, metric: EvaluationMetric) -> RewardClient:
    """Rank 0's client of one metric of the evaluation, for which the job is never paused."""
    part, by_model = judge_part(metric.metric), metric.model is not None
    return _client(
        ctx,
        "scores",
        functions=None if by_model else (part, metric.concurrency),
        model=part if by_model else None,
        patience=0.0,
    )


def _client(
    ctx: TrainerContext,
    array: str,
    *,
    functions: tuple[str, int] | None,
    model: str | None,
    patience: float,
) -> RewardClient:
    """`functions`: their part of a message, and how many calls of one a member makes at once; it gets as many responses
    as these can take, and as many to go on with, in messages of as many as a call has. `model`: the part that
    computes."""
    assert ctx.services is not None
    roster = ctx.services.roster
    return RewardClient(
        array,
        functions=functions
        and (functions[0], scorer(ctx, Role.REWARD, AHEAD * functions[1] * MOST_PER_CALL, MOST_PER_CALL)),
        model=(model, scorer(ctx, Role.REWARD)) if model else None,
        max_failed_share=ctx.spec.reward.max_failed_share,
        patience=patience,
        stopping=lambda: roster.stopping,
        report=lambda activity: ctx.report(activity=activity),
    )


def _scores(
    reward: RewardClient,
    section: Reward,
    writes: Sequence[str],
    sequences: Sequences,
    rows: Sequence[Mapping[str, Any]],
) -> Mapping[str, Tensor]:
    """The columns that a Score node writes: that of the rewards together, then those of single ones."""
    totals = reward.ask(sequences, rows)
    together = to_float32(scaled_scores(totals, bias=section.bias, scale=section.scale, clip=section.clip))
    each = {reward_column(name): scores for name, scores in reward.scores.items()}
    return {writes[0]: together, **{name: each[name] for name in writes[1:]}}


def _judged(judge: RewardClient, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Scores of an evaluation set, whose failures are counted against its own responses alone."""
    judge.take_metrics()
    return to_float32(judge.ask(sequences, rows))


def _inference(ctx: TrainerContext, node: Node, role: Role) -> RemoteCall:
    if TEACHER in node.reads:
        ask = Teachers([_teacher(ctx, role, share) for share in shares_of(ctx.spec)]).ask
    else:
        ask = scorer(ctx, role).ask
    if REFERENCE_TOP not in node.writes:
        return partial(_logprobs, ask)
    return partial(_top_logprobs, ask, teacher_top_k(ctx.spec), len(ctx.tokenizer))


def _logprobs(
    ask: Callable[..., Tensor],
    sequences: Sequences,
    _rows: Sequence[Mapping[str, Any]],
    **teacher: Tensor,
) -> Tensor:
    return ask(sequences, "logprobs", **teacher)


def _top_logprobs(
    ask: Callable[..., Tensor],
    count: int,
    vocabulary: int,
    sequences: Sequences,
    _rows: Sequence[Mapping[str, Any]],
    **teacher: Tensor,
) -> Tensor:
    return known_tokens(ask(sequences, "top_logprobs", width=2 * count, **teacher), vocabulary)


def _teacher(ctx: TrainerContext, role: Role, share: Share) -> Scorer:
    """Rank 0's client of one teacher's processes."""
    assert ctx.services is not None
    roster = ctx.services.roster.of_names({process_name(role, index, 0) for index in share.processes})
    return scorer(replace(ctx, spec=share.spec, services=replace(ctx.services, roster=roster)), role)

"""Collects episodes: prompts -> responses -> the algorithm's preparing nodes, all at once or as responses come."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlhf_api.algorithms import teachers_of
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import ENVIRONMENT_REWARD, REWARD, TEACHER, Generate, Node
from rlhf_api.sections.reward import ENVIRONMENT

from ..data.sampling_request import SamplingRequest
from ..dispatch.roster import Unavailable
from ..environments.environments import UNOPENED
from ..graph.executor import Executor
from ..graph.learner import Learner
from ..maths.groups import has_spread
from ..ranks.context import TrainerContext
from ..replay.table import Episode
from ..scoring.reward_client import Unscored
from ..tensors.columns import Columns
from ..tensors.records import Prompt
from .clients.vllm_client import is_refusal
from .failed_episodes import FailedEpisodes
from .in_flight.requests import Responses
from .prompt_source import PromptSource
from .remote import Remote, begin_scoring
from .responses import collected, joined
from .rollouts import Rollouts
from .unscored import score_columns, unscored

Rows = Sequence[Mapping[str, Any]]


class StaleTokens(RuntimeError):
    """Responses older than `rollout.maxStaleness` were about to be trained on: a bug of ours."""


class EpisodeCollector:
    """Responses of the policy to the next prompts, with the columns that training needs. Methods are collectives."""

    def __init__(
        self,
        ctx: TrainerContext,
        learner: Learner,
        rollouts: Rollouts,
        executor: Executor,
        source: PromptSource,
        remote: Remote,
    ) -> None:
        self._ctx, self._graph, self._rollouts = ctx, learner.graph, rollouts
        self._executor, self._source = executor, source
        self._reward = remote.reward
        episodes = ctx.spec.data.prompts_per_step * ctx.spec.sampling.responses_per_prompt
        self.failed = FailedEpisodes(episodes, ctx.spec.reward.max_failed_share)
        self._ended, self._judged = begin_scoring(remote.reward), begin_scoring(*remote.judging)

    def respond(self, batch: list[Prompt], request: SamplingRequest) -> Responses:
        """The responses to a batch of prompts, not to be trained on: on every rank if the trainer generates, else on
        rank 0."""
        return self._rollouts.answer(batch, request, self._judged)

    def episode(self, number: int) -> tuple[Episode, dict[str, float]]:
        """The episode of a step, and the seconds of its parts. If the graph has rounds, groups whose responses all have
        the same score are replaced by those of fresh prompts, for at most that number of rounds, and counted."""
        assert isinstance(self._graph.source, Generate)
        rounds = self._graph.source.rounds
        missing = requested = self._ctx.spec.data.prompts_per_step
        figures = {"generate_seconds": 0.0, "score_seconds": 0.0}
        figures |= {"groups_filtered": 0.0} if rounds else {}
        parts: list[Episode] = []
        for left in range(rounds, -1, -1):
            began = time.perf_counter()
            self._ctx.report(activity="generating")
            if self._rollouts.is_ahead and left == rounds:
                responses = self._rollouts.episode()
            else:
                fresh = self._source.issue(missing, self._later(number))
                requested, request = len(fresh), SamplingRequest(self._ctx.spec.sampling)
                responses = self._rollouts.answer(fresh, request, self._ended, enough=missing)
            responses = self.failed.leave_out(responses)
            if not parts:
                _not_all_refused(responses, requested)
            self._rollouts.yield_gpus()
            generated = time.perf_counter()
            self._ctx.report(activity="scoring")
            part = self._received(number, responses, sampled=self.sampled)
            if part is None:  # all prompts of a later round were refused
                break
            if older := self.too_old(part, self._rollouts.version):
                raise StaleTokens(older)
            rows = [dict(r.prompt.row) for r in responses.rollouts]
            if rounds:
                part, missing = self._with_spread(part, rows, keep=not left and not parts)
                figures["groups_filtered"] += missing
            else:
                part, missing = self._scored(part, rows), 0
            self._forget_stopped(responses)
            parts += [part] if len(part) else []
            figures["generate_seconds"] += generated - began
            figures["score_seconds"] += time.perf_counter() - generated
            if not missing:
                break
        if not parts:
            raise Unscored(
                "every group of the step's first round had one score, and no response since has any"
            )
        episode = joined(parts)
        columns = self._executor.run(episode.columns)
        if not rounds:
            self._record_scores(columns)
        return replace(episode, columns=columns), figures

    def stream(self, number: int, count: int | None) -> Iterator[tuple[Episode | None, dict[str, float]]]:
        """The episode of a step in parts of about `count` responses, as they come while the generators go on, with the
        seconds that each part was waited for and prepared; all at once for None. A part is None where its prompts have
        no response, or none with a score.

        The policy moves between the parts, so the old log-probabilities are those of the sampler.
        """
        each = self._ctx.spec.sampling.responses_per_prompt
        size = None if count is None else -(-count // each)
        began = time.perf_counter()
        enough = self._ctx.spec.data.prompts_per_step
        prompts = self._source.issue(enough, self._later(number))
        for responses in self._rollouts.stream(prompts, size, ended=self._ended, enough=enough):
            came = time.perf_counter()
            responses = self.failed.leave_out(responses)
            part = self._received(number, _not_all_refused(responses, len(prompts)), sampled=True)
            if part is not None:
                rows = [dict(r.prompt.row) for r in responses.rollouts]
                part = self._scored(part, rows)
                part = replace(part, columns=self._executor.run(part.columns)) if len(part) else None
                if part is not None:
                    self._record_scores(part.columns)
            self._forget_stopped(responses)
            scored = time.perf_counter() - came
            yield part, {"generate_seconds": came - began, "score_seconds": scored}
            began = time.perf_counter()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the prompts and episodes since the last call."""
        return self.failed.take_metrics() | self._source.take_metrics()

    @property
    def sampled(self) -> bool:
        """True if the sampler's log-probabilities serve as the old ones, those of the policy before the step."""
        if self._rollouts.is_ahead:
            return self._ctx.spec.rollout.proximal == "sampled"
        return self._rollouts.is_stale

    def too_old(self, part: Episode, version: int) -> str:
        """Error message if a token is older than policy `version` may train on; else empty."""
        spec, oldest = self._ctx.spec, int(part.columns["versions"].min())
        bound = max(spec.rollout.max_staleness, spec.weights.every_steps - 1)
        if version - oldest <= bound:
            return ""
        name = "weights.everySteps - 1" if bound > spec.rollout.max_staleness else "rollout.maxStaleness"
        return (
            f"a token of weight version {oldest} came to version {version}, "
            f"which is more than {name} ({bound}) versions later"
        )

    def not_trainable(self, part: Episode, version: int) -> str:
        """Error message if policy `version` may not train on a snapshot's episode: it is too old, or has no scores of
        the kind that the job now asks for, which need the prompts' rows; else empty."""
        named = (*score_columns(self._graph), *((TEACHER,) if teachers_of(self._ctx.spec) else ()))
        lacking = [name for name in named if name not in part.columns]
        return self.too_old(part, version) or (f"they have no {', '.join(lacking)}" if lacking else "")

    def _later(self, number: int) -> int:
        """Prompts that the run trains on after the step of episode `number`."""
        return (self._ctx.spec.steps - number) * self._ctx.spec.data.prompts_per_step

    def _forget_stopped(self, responses: Responses) -> None:
        """Forgets scores, begun as responses ended, of prompts that were stopped: others of theirs had not ended."""
        if responses.stopped and self._reward is not None:
            self._reward.forget_begun()

    def _received(self, number: int, responses: Responses, *, sampled: bool) -> Episode | None:
        """The responses as (a part of) an episode, recorded in the ledger; None if there are none.

        `sampled`: the sampler's log-probabilities serve as the old ones. So they do if generators that died served
        other weights than those that the others have since.
        """
        names = [teacher.name for teacher in teachers_of(self._ctx.spec)]
        part = self._source.take(collected(self._ctx.ranks, number, responses, self._source.places, names))
        if part is None:
            return None
        other = part.columns["versions"] != self._rollouts.version
        older = not self._rollouts.is_ahead and bool(other.any())
        if not (sampled or older):
            return part
        return replace(part, columns=part.columns.with_tokens(logprobs=part.columns["sampled_logprobs"]))

    def _scored(self, part: Episode, rows: Rows, *, until: Node | None = None) -> Episode:
        """The responses that have a score, with all columns that do not depend on scores. Responses without a score are
        left out, and prompts without any other response are dropped; baselines and advantages use the rest."""
        names = score_columns(self._graph)
        columns = self._executor.run(part.columns, rows, until=until, without=names)
        rewards = dict(self._reward.scores) if self._reward and names else {}
        if self._ctx.ranks.first and ENVIRONMENT_REWARD in columns:
            rewards[ENVIRONMENT] = columns[ENVIRONMENT_REWARD]
        part = replace(part, columns=columns, rewards=rewards)
        lacking = unscored(columns, names)
        if not bool(lacking.any()):
            return part
        failures = self._reward.failures if self._reward else {}
        _, header = self._ctx.ranks.share(lambda: ({}, {"reasons": list(failures.items())}))
        positions, left = columns["position"], set(columns["position"][~lacking].tolist())
        reasons = {int(positions[row]): reason for row, reason in header["reasons"]}
        for position in sorted(set(positions[lacking].tolist()) - left):
            self._source.unscored([position], reasons.get(position, "its responses have no score"))
        return part.select((~lacking).nonzero().flatten())

    def _with_spread(self, part: Episode, rows: Rows, *, keep: bool) -> tuple[Episode, int]:
        """The groups whose scores differ, together or of a reward that is normalised alone, and the number of prompts
        filtered out; none is filtered if `keep` is set and all groups would be."""
        scored = next(node for node in self._graph.prepare if "scores" in node.writes)
        part = self._scored(part, rows, until=scored)
        if not len(part):  # of a later round: in the first some have a score
            return part, 0
        columns = self._executor.run(part.columns, until=scored)
        self._record_scores(columns)
        names = ("scores", *(name for name in score_columns(self._graph) if name.startswith(REWARD)))
        spread = torch.stack([has_spread(columns[name], columns["position"]) for name in names]).any(0)
        if keep and not bool(spread.any()):
            spread = torch.ones_like(spread)
        filtered = sorted(set(columns["position"][~spread].tolist()))
        self._source.filtered(filtered)
        return replace(part, columns=columns).select(spread.nonzero().flatten()), len(filtered)

    def _record_scores(self, columns: Columns) -> None:
        """Has the source know how each prompt's responses were scored."""
        if "scores" in columns:
            self._source.score(columns["position"].tolist(), columns["scores"].tolist())


def _not_all_refused(responses: Responses, requested: int) -> Responses:
    """The responses to `requested` prompts. Raises InvalidJob if the generators refuse every one, as they will again,
    and Unavailable if they fail at every one: what is wrong is then not a prompt."""
    given = sum(rollout.prompt.given is not None for rollout in responses.rollouts)
    if not responses.refused or len(responses.refused) < requested - given:
        return responses
    reason = next(iter(responses.refused.values()))
    if all(each.startswith(UNOPENED) for each in responses.refused.values()):
        raise InvalidJob([Problem("spec.environment", reason)])
    if all(map(is_refusal, responses.refused.values())):
        raise InvalidJob([Problem("spec.generator", f"the generators refuse every prompt: {reason}")])
    raise Unavailable(f"the generators respond to no prompt: {reason}")

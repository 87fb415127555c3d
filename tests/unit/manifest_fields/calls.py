"""Views of what roles ask of each other, and of rewards, as it is asked."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.manifest_fields.host import config
from tests.unit.manifest_fields.parts import Made, context, instead, tokenizer

from rlhf_api.contract.run import roles_of
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Role
from rlhf_trainer.data.dataset import open_datasets
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.engines.vllm.serve.launch import frozen_options
from rlhf_trainer.environments import environments
from rlhf_trainer.maths.rewards import scaled_scores
from rlhf_trainer.process.settings import ModelSource
from rlhf_trainer.roles import generator, reward
from rlhf_trainer.rollout import collector, remote
from rlhf_trainer.rollout.clients import turns_client
from rlhf_trainer.rollout.evaluation import evaluate
from rlhf_trainer.rollout.failed_episodes import FailedEpisodes
from rlhf_trainer.rollout.in_flight.fleet import Fleet
from rlhf_trainer.scoring import function_pool, program, service
from rlhf_trainer.scoring.rewards import WeightedModels
from rlhf_trainer.training import assembly


def serving(job: RLHFJob) -> Any:
    """vLLM's options, its requests, and the broadcast."""
    made, parts = config(job), []
    if Role.GENERATOR not in roles_of(job.spec):
        return None
    for memory in (None, 80e9):
        parts.append(generator.arguments(made, "h", 1, memory))
    if job.spec.environment is not None:  # see `episodes`
        return parts
    with instead(assembly, "Broadcaster") as sync:
        routers = SimpleNamespace(shape="of a row")
        policy = SimpleNamespace(generation_config=None, vocabulary=300, routers=routers)
        rollouts: Any = assembly.make_rollouts(context(job), made, policy, None)
    fleet = rollouts._fleet
    for _, named in sync.told:
        parts.append({key: value for key, value in named.items() if key != "fault"})
    parts += [fleet._client._base_request.model_dump(), fleet._client._seed, fleet._client._thought]
    works = fleet.fresh(prompts(open_datasets(job.spec).rows, [(0, 0)], tokenizer(), job.spec.data))
    parts += [len(work.responses) for work in works]
    with instead(Fleet, "_present"), pytest.MonkeyPatch.context() as patch:
        started = Made()
        patch.setattr("rlhf_trainer.rollout.in_flight.fleet.start_round", started)
        fleet.start(works, lambda _: None, None)
        parts.append(started.told[0][1]["limits"])
    if job.spec.rollout.max_staleness:
        rollouts._ahead.extend(0, list, collected=False)
        parts.append(len(rollouts._ahead._episodes))
    return parts


def collecting(job: RLHFJob) -> Any:
    """Rounds of prompts where all groups have one score, and whose log-probabilities are the old ones."""
    if not job.spec.graph.generates:
        return None
    rounds: list[int] = []
    part = SimpleNamespace(columns={"versions": torch.zeros(1)})

    def answer(*_: Any, **__: Any) -> Any:
        rounds.append(1)
        return SimpleNamespace(rollouts=[], refused={}, stopped=[])

    class Collector(collector.EpisodeCollector):
        def __init__(self) -> None:
            self._ctx, self._graph = context(job), job.spec.graph
            self._received = lambda *_, **__: part
            self._source = SimpleNamespace(issue=lambda *_: [])
            self._with_spread, self._scored = lambda *_, **__: ([part], 1), lambda *_: [part]
            self._executor = SimpleNamespace(run=lambda _: {})
            self._rollouts = SimpleNamespace(
                is_ahead=False, is_stale=False, version=0, answer=answer, yield_gpus=lambda: None
            )
            self.failed = FailedEpisodes(1, 0.0)
            self._ended = None

    made = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "joined", lambda _: part)
        patch.setattr(collector, "replace", lambda *_, **__: None)
        made.episode(1)
    made._rollouts.is_ahead = job.spec.rollout.max_staleness > 0
    return len(rounds), made.sampled


def evaluations(job: RLHFJob) -> Any:
    """Prompts and sampling of each evaluation set, and the function that judges."""
    section, requests = job.spec.evaluation, []
    if section is None or not job.spec.graph.generates:
        return [(s.name, s.data) for s in job.spec.evaluation_sets()]

    def respond(batch: Any, request: Any) -> Any:
        requests.append(([p.id for p in batch], request.sampling, request.penalties))
        return SimpleNamespace(rollouts=[])

    evaluate(context(job), open_datasets(job.spec).held_out, respond, {})
    return requests, [s.name for s in job.spec.evaluation_sets()]


def rewards(job: RLHFJob) -> Any:
    """The parts of a score, how they are asked for, and the score made of them."""
    if Role.REWARD not in roles_of(job.spec):
        return None
    section, parts, models, made, weighted = job.spec.reward, list[Any](), Made(), Made(), Made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY", "secret")
        for module, way in (
            (function_pool, "FunctionPool"),
            (program, "Program"),
            (service, "HttpService"),
        ):
            patch.setattr(module, way, lambda *given, way=way, **named: _Started((way, given, named)))
        patch.setattr(reward, "load_frozen", models)
        for name in ("load_job_tokenizer", "load_own_tokenizer"):
            patch.setattr(reward, name, lambda *_: SimpleNamespace(get_vocab=dict, pad_token_id=0))
        for name in ("on_device", "served", "ModelScorer", "TokenScorer", "application", "serve"):
            patch.setattr(reward, name, lambda *given, **_: len(given))
        patch.setattr(reward, "StepScorer", lambda *given: given[2:])
        for name in ("forward_scores", "positions_of", "check_served", "check_separator"):
            patch.setattr(reward, name, lambda *given: len(given))
        engine = SimpleNamespace(scores=None, restart_reason=None, close=lambda: None)
        patch.setattr(reward, "FrozenModel", SimpleNamespace(of=lambda *_: engine))
        patch.setattr(reward, "Functions", made)
        named = lambda *given: weighted(*given) and SimpleNamespace(name=given[-1])  # noqa: E731
        patch.setattr(reward, "WeightedModel", named)
        reward.run(SimpleNamespace(config=config(job), prover=lambda: None, host="h", port=1))
    for (_, seconds, functions), named in made.told:
        parts += [seconds, [(f.name, f.weight, f.retries, f.scorer.made) for f in functions], named]
    parts += [(weight, scorer, name) for (weight, scorer, _, name), _ in weighted.told]
    parts.append([given[1:2] + given[3:] for given, _ in models.told])
    if job.spec.evaluation is not None:
        there: Any = [SimpleNamespace(name=model.name) for model in job.spec.reward_models]
        metrics = job.spec.evaluation.placed_metrics.values()
        parts.append(reward.metric_models(metrics, WeightedModels(there)))
    totals = torch.tensor([-2.0, 0.25, 3.0])
    parts += scaled_scores(totals, bias=section.bias, scale=section.scale, clip=section.clip).tolist()
    client = remote.reward_client(context(job), array="scores")
    at_once = client._functions and client._functions[1]._at_once
    return parts, client._max_failed_share, client._patience, at_once


class _Started:
    """A way to score that is started, which keeps how it was made."""

    def __init__(self, made: Any) -> None:
        self.made = made

    async def start(self) -> None: ...


def servers(job: RLHFJob) -> Any:
    """Deadlines of calls to the roles that score and infer."""
    called_roles = [role for role in roles_of(job.spec) if role.row.work in ("score", "infer")]
    made = [remote.scorer(context(job), role) for role in called_roles]
    return [(each._timeout, each._patience, each._chunk_tokens) for each in made]


def frozen(job: RLHFJob) -> Any:
    """vLLM's options for models that are frozen."""
    options = []
    for role in roles_of(job.spec):
        if getattr(job.spec.section(role), "engine", None) == "vllm":
            source = ModelSource("spec.model", "policy")
            run = config(job)
            made = [frozen_options(run, role, source, 13, cpu=cpu) for cpu in (False, True)]
            made.append(frozen_options(run, role, source, 13, cpu=False, shared_memory=80e9))
            options.append((role, made))
    return options


def episodes(job: RLHFJob) -> Any:
    """The processes of an environment, what its replies are limited by, and its turns."""
    parts = list[Any]()
    if job.spec.environment is None:
        return None

    async def start() -> None: ...

    def pool(given: Any) -> Any:
        parts.append((given.path, given.program, given.python, given.settings, given.network, given.workers))
        return SimpleNamespace(start=start, schemas=[])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "WorkerPool", pool)
        played = asyncio.run(environments.start_environments(job.spec, tokenizer(), ()))
    with instead(turns_client, "TurnsClient") as made:
        client: Any = None
        turns_client.turns_client(client, played, job.spec, tokenizer(), ())
    ((_, turns),) = made.told
    return parts, played.section, turns["most"], turns["sampling"]


VIEWS = (servers, frozen, serving, collecting, evaluations, rewards, episodes)

"""Rules that span several fields of a spec, each naming the field that breaks it."""

import re
from collections.abc import Callable, Iterator

from pydantic.alias_generators import to_camel

from . import evaluation, health, lora, pod_checks, resources, rollout, sources
from .algorithms import ALGORITHMS, CUSTOM, algorithm_of, graph_of, settings_of
from .problems import Problem, path, show
from .roles import Role
from .spec import Spec

Rule = Callable[[Spec], Iterator[Problem]]


def _algorithm(spec: Spec) -> Iterator[Problem]:
    """Rules of the job's algorithm; settings of any other one would have no effect."""
    chosen = algorithm_of(spec)
    for other in (*ALGORITHMS.values(), CUSTOM):
        if other.settings and other is not chosen and other.name in spec.model_fields_set:
            field = Spec.model_fields[other.name]
            if getattr(spec, other.name) != field.default:
                used = f"spec.{to_camel(chosen.name)}" if chosen.settings else "none: it has no settings"
                yield Problem(
                    f"spec.{field.alias or other.name}",
                    f"is for algorithm {other.name if other is not CUSTOM else 'module:name'}; algorithm is "
                    f"{spec.algorithm}, whose section is {used}",
                )
    if chosen.rules is not None:
        yield from chosen.rules(spec, f"spec.{to_camel(chosen.name)}", settings_of(spec))


def _policy(spec: Spec) -> Iterator[Problem]:
    if (spec.model.policy is None) == (spec.model.create is None):
        seen = "neither is" if spec.model.policy is None else "both are"
        yield Problem(
            "spec.model", f"needs exactly one of policy (a path or hub name) and create; {seen} set"
        )
    if spec.model.create is not None and graph_of(spec).generates:
        yield Problem(
            "spec.model.create",
            f"{spec.algorithm} needs a policy that already answers: train one with algorithm sft first, "
            "then give its path as spec.model.policy",
        )


def _reward(spec: Spec) -> Iterator[Problem]:
    if Role.REWARD not in graph_of(spec).roles:
        return
    scored_by_model = spec.model.reward is not None and spec.reward.model_weight != 0
    if not scored_by_model and not spec.reward.functions:
        yield Problem(
            "spec.reward",
            "nothing scores the answers: set spec.model.reward (a reward model) or spec.reward.functions",
        )
    names = ["model"] if scored_by_model else []
    for i, entry in enumerate(spec.reward.functions):
        if entry.metric in names:
            message = f"two rewards are {entry.metric!r} in the metrics; give this one another name"
            yield Problem(f"spec.reward.functions[{i}].name", message)
        names.append(entry.metric)
    if spec.reward.fine_grained and (spec.reward.functions or not scored_by_model):
        yield Problem(
            "spec.reward.fineGrained",
            "needs spec.model.reward and no functions: a function gives one number for a whole response; got true",
        )
    if spec.reward.fine_grained and spec.reward.bias:
        yield Problem(
            "spec.reward.bias",
            f"would be added to every token with fineGrained; use 0; got {spec.reward.bias:g}",
        )
    if spec.reward.clip is not None and spec.reward.clip[0] >= spec.reward.clip[1]:
        yield Problem(
            "spec.reward.clip", f"the lower bound must be below the upper; got {list(spec.reward.clip)}"
        )


def _sampling(spec: Spec) -> Iterator[Problem]:
    s = spec.sampling
    truncated = s.top_p < 1 or s.top_k > 0 or s.min_new_tokens > 0
    compared = spec.replay.dynamic or spec.weights.every_steps > 1 or spec.rollout.max_staleness
    if truncated and graph_of(spec).generates and (compared or spec.rollout.level != "none"):
        yield Problem(
            "spec.sampling",
            "topP, topK and minNewTokens leave out tokens, unknown to the trainer's log-probabilities; with "
            "replay.streamDataLoaderType dynamic, weights.everySteps above 1, rollout.maxStaleness or "
            "rollout.importance they would be compared; switch them off",
        )
    if s.min_new_tokens > s.max_new_tokens:
        yield Problem(
            "spec.sampling.minNewTokens",
            f"must not exceed maxNewTokens ({s.max_new_tokens}); got {s.min_new_tokens}",
        )


def _batches(spec: Spec) -> Iterator[Problem]:
    if not graph_of(spec).generates:
        return
    longest = spec.data.max_prompt_length + spec.sampling.max_new_tokens
    if spec.trainer.micro_batch_tokens < longest:
        yield Problem(
            "spec.trainer.microBatchTokens",
            f"one answer can have {longest} tokens (data.maxPromptLength + sampling.maxNewTokens); "
            f"use at least that; got {spec.trainer.micro_batch_tokens}",
        )


RELAY = {
    "max_replay_episode": "max_relay_episode",
    "replay_episode_offset": "relay_episode_offset",
    "replay_sample_fn": "relay_sample_fn",
}
"""The two spellings of each field of spec.replay."""


def _replay(spec: Spec) -> Iterator[Problem]:
    replay = spec.replay
    keys = {name: f"spec.replay.{field.alias}" for name, field in type(replay).model_fields.items()}
    for name, relay in RELAY.items():
        if getattr(replay, name) is not None and getattr(replay, relay) is not None:
            yield Problem(keys[relay], f"means the same as {keys[name]}; remove one of them")
    for name in (*RELAY, *RELAY.values(), "samples_per_step"):
        if not replay.window and not name.startswith("max_") and getattr(replay, name) is not None:
            message = f"has an effect with maxReplayEpisode only; got {getattr(replay, name)!r}"
            yield Problem(keys[name], message)
    if replay.dynamic and spec.generator.shared_with_trainer:
        yield Problem(
            "spec.replay.streamDataLoaderType",
            "dynamic trains while generators answer, and with spec.generator.sharedWithTrainer there are none; "
            "use fixed; got 'dynamic'",
        )
    if replay.samples_per_step is not None and replay.sampler_is_import:
        yield Problem(
            "spec.replay.samplesPerStep",
            f"is for the built-in samplers; {replay.sampler} itself says how many it returns; remove it; "
            f"got {replay.samples_per_step}",
        )


def _sampled(spec: Spec) -> Iterator[Problem]:
    """Sections about sampled responses, in a job that samples none."""
    if graph_of(spec).generates:
        return
    for name in ("replay", "rollout", "pretraining"):
        if getattr(spec, name) != Spec.model_fields[name].default:
            message = f"is for algorithms that sample responses; {spec.algorithm} trains on given ones"
            yield Problem(f"spec.{name}", message)


def _weights(spec: Spec) -> Iterator[Problem]:
    """Settings of generators in a job that has none."""
    if Role.GENERATOR in graph_of(spec).roles and not spec.generator.shared_with_trainer:
        return
    if spec.weights != type(spec.weights)():
        yield Problem("spec.weights", "is of weights that go to generators, and the job has none; remove it")
    for name in ("replicas", "tensor_parallel_size"):
        value = getattr(spec.generator, name)
        if value > 1:
            where = f"spec.generator.{to_camel(name)}"
            yield Problem(where, f"is of generators, and the job has none; use 1; got {value}")


def _evaluation(spec: Spec) -> Iterator[Problem]:
    if spec.evaluation is not None and not graph_of(spec).generates:
        message = f"is of responses to held-out prompts, and {spec.algorithm} samples none; remove it"
        yield Problem("spec.evaluation", message)
        return
    yield from evaluation.problems(spec)


def _checkpoint(spec: Spec) -> Iterator[Problem]:
    if spec.checkpoint.keep_best and spec.evaluation is None:
        yield Problem(
            "spec.checkpoint.keepBest",
            f"nothing says which are best: set spec.evaluation, or 0; got {spec.checkpoint.keep_best}",
        )


def _precision(spec: Spec) -> Iterator[Problem]:
    dtype, deepspeed = spec.trainer.dtype or spec.model.dtype, spec.trainer.deepspeed
    for key, wanted in (("bf16", "bfloat16"), ("fp16", "float16")):
        section = getattr(deepspeed, key)
        if section is not None and section.enabled and dtype != wanted:
            yield Problem(
                f"spec.trainer.deepspeed.{key}.enabled",
                f"the trainer computes in {dtype}; set spec.trainer.dtype to {wanted} or drop this; got true",
            )
        if section is not None and not section.enabled and dtype == wanted:
            yield Problem(
                f"spec.trainer.deepspeed.{key}.enabled",
                f"the optimizer of a {dtype} model would have no float32 weights; set spec.trainer.dtype to float32, "
                "or drop this; got false",
            )


def _deepspeed(spec: Spec) -> Iterator[Problem]:
    """Keys of DeepSpeed's that this trainer does not read."""
    deepspeed = spec.trainer.deepspeed
    for name, instead in (
        ("steps_per_print", "metrics.jsonl has every step"),
        ("activation_checkpointing", "the models here are not made with DeepSpeed's checkpoints"),
    ):
        if getattr(deepspeed, name) is not None:
            yield Problem(f"spec.trainer.deepspeed.{name}", f"has no effect ({instead}); remove it")
    if deepspeed.optimizer is not None and "lr" in deepspeed.optimizer.params:
        where = "spec.trainer.deepspeed.optimizer.params.lr"
        yield Problem(where, "is set by the job (spec.optimizer.learningRate); remove it")


def _owned_arguments(spec: Spec) -> Iterator[Problem]:
    for key in spec.generator.engine_arguments:
        name = key.lstrip("-").replace("_", "-")
        if key != name:
            yield Problem(
                f"spec.generator.engineArguments.{key}", f"spell it as vLLM does, without dashes: {name}"
            )
        if spec.generator.engine_arguments[key] is None:
            where = f"spec.generator.engineArguments.{key}"
            yield Problem(where, "null is no value; true switches a flag on, false off; got null")
        if name in OWNED_ENGINE_ARGUMENTS:
            yield Problem(
                f"spec.generator.engineArguments.{key}",
                f"is set by the job ({OWNED_ENGINE_ARGUMENTS[name]}); remove it",
            )


def _trackers(spec: Spec) -> Iterator[Problem]:
    for i, tracker in enumerate(spec.trackers):
        if tracker.kind == "tensorboard" and tracker.project is not None:
            where = f"spec.trackers[{i}].project"
            yield Problem(
                where, f"TensorBoard's files know no projects; remove it; got {show(tracker.project)}"
            )
        if "api_key" in tracker.settings or "token" in tracker.settings:
            where = f"spec.trackers[{i}].settings"
            yield Problem(where, "is no place for secrets; use spec.pods.secrets, or the shell of `rlhf run`")


def _environment(spec: Spec) -> Iterator[Problem]:
    for key, value in spec.environment.items():
        where = path(("spec", "environment", key))
        if key.startswith("RLHF_"):
            yield Problem(where, f"names that begin with RLHF_ are ours; got {show(value)}")
        elif not re.fullmatch(r"[A-Za-z_.-][A-Za-z0-9_.-]*", key):
            yield Problem(where, f"is no name of an environment variable; got {show(value)}")


OWNED_ENGINE_ARGUMENTS = {
    "model": "spec.model.policy",
    "tokenizer": "spec.model.tokenizer",
    "dtype": "spec.generator.dtype",
    "seed": "spec.seed",
    "port": "the launcher",
    "host": "the launcher",
    "tensor-parallel-size": "spec.generator.tensorParallelSize",
    "weight-transfer-config": "the weight broadcast",
    "worker-extension-cls": "the weight broadcast",
    "middleware": "the token check",
    "served-model-name": "metadata.name",
    "generation-config": "spec.sampling",
    "logprobs-mode": "the trainer's log-probabilities",
}

RULES: tuple[Rule, ...] = (
    *(_algorithm, _policy, _reward, _sampling, _batches, _replay),
    *(_sampled, rollout.problems, lora.problems, _weights, _evaluation, _checkpoint, _precision, _deepspeed),
    health.problems,
    *(_owned_arguments, _trackers, _environment),
    *(sources.problems, pod_checks.pods, pod_checks.scheduling, resources.problems),
)


def check(spec: Spec) -> list[Problem]:
    """Every cross-field problem of a spec; empty when it can run."""
    return [problem for rule in RULES for problem in rule(spec)]


CHANGEABLE = ("suspend", "active_deadline_seconds", "ttl_seconds_after_finished")
"""Fields that may change while a job runs, beside the number of generators; all else while it is suspended."""


def check_change(before: Spec, after: Spec) -> list[Problem]:
    """Refusals of changes to a job that is not suspended."""
    if before.suspend:
        return []
    after = after.model_copy(
        update={
            "generator": after.generator.model_copy(update={"replicas": before.generator.replicas}),
            **{name: getattr(before, name) for name in CHANGEABLE},
        }
    )
    return [
        Problem(
            f"spec.{field.alias or name}",
            "cannot change while the job runs; suspend it first (spec.suspend: true)",
        )
        for name, field in Spec.model_fields.items()
        if getattr(before, name) != getattr(after, name)
    ]

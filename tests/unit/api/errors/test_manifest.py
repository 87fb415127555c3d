"""Bad manifests: each problem names the field, the value seen and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.manifests import assert_refused, document, job, refusals

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import load, parse

BAD: list[tuple[str, ...]] = [
    # override, place unless it is the overridden field, words: see `assert_refused`
    ("spec.sampling.top_kk=0", 'unknown field (value 0); did you mean "topK"?'),
    ("spec.sampling.topK=-2", "must be greater than or equal to -1; got -2"),
    ("spec.sampling.temperature=0.009", "must be greater than or equal to 0.01; got 0.009"),
    ("spec.sampling.temperature=2.5", "must be less than or equal to 2; got 2.5"),
    ("spec.sampling.minNewTokens=999", "must not exceed maxNewTokens (256)"),
    ("spec.trainer.deepspeed.bf16.enable=true", '"enabled"'),
    ("spec.trainer.deepspeed.fp16.enabled=true", "in bfloat16"),
    ("spec.trainer.deepspeed.zero_optimisation={}", "zero_optimisation", '"zero_optimization"'),
    ("spec.trainer.deepspeed.zero_optimization.stage=4", "zero_optimization.stage", "got 4"),
    ("spec.trainer.deepspeed.train_batch_size=8", "train_batch_size", "use spec.ppo.minibatchSize"),
    ("spec.trackers=[{kind: tensorbord}]", "[0].kind", "must be tensorboard, wandb"),
    ("spec.trackers=[{kind: tensorboard, project: p}]", "[0].project", "has no projects"),
    ("spec.trackers=[{kind: wandb, settings: {api_key: x}}]", "[0].settings", "must not hold secrets"),
    ("spec.steps=ten", "must be a valid integer; got 'ten'"),
    ("spec.steps=0", "must be greater than or equal to 1; got 0"),
    ("spec.steps=true", "must be a valid integer; got true"),
    ("spec.steps=null", "got null"),
    ("spec.algorithm=PPO", "or module:name of your own; did you mean \"ppo\"?; got 'PPO'"),
    ("spec.algorithm=trpo", f"must be one of {', '.join(ALGORITHMS)}, or module:name"),
    ("spec.algorithm=dpo", "spec.ppo", "is for algorithm ppo; this job's is dpo, which has spec.dpo"),
    ("spec.algorithm=a.b:c", "spec.ppo", "is for algorithm ppo; this job's is a.b:c, which has spec.custom"),
    ("spec.algorithm=sft", "spec.ppo", "this job's is sft, which has no settings"),
    ("spec.grpo.epochs=2", "spec.grpo", "is for algorithm grpo; this job's is ppo, which has spec.ppo"),
    ("spec.model.dtype=bf16", 'did you mean "bfloat16"?'),
    ("spec.model.policy=null", "spec.model", "needs exactly one of policy"),
    ("spec.model.polcy=x", 'did you mean "policy"?'),
    ("spec.data.train=[]", "must have at least 1 item; got []"),
    ("spec.data.train=prompts.jsonl", "such as [prompts.jsonl]; got 'prompts.jsonl'"),
    ("spec.data.train[0]=3", "must be text; put it in quotes; got 3"),
    ("spec.ppo.clipRatio=-0.1", "must be greater than 0; got -0.1"),
    ("spec.ppo.gamma=1.5", "must be less than or equal to 1; got 1.5"),
    ("spec.ppo.minibatchSize=9", "a step has 8 responses"),
    ("spec.ppo.kl_coefficent=0.1", 'did you mean "klCoefficient"?'),
    ("spec.checkpoint.every=3", "did you mean spec.checkpoint.everySteps?"),
    ("spec.generator.image=swe:1", "did you mean spec.generator.pods.image?"),
    ("spec.replay.maxReplayEpisode=-2", "must be greater than or equal to -1"),
    ("spec.replay.max_replay_episodes=1", '"maxReplayEpisode"'),
    ("spec.replay.replaySampleFn=best", "uniform, newest, prioritized, or"),
    ("spec.replay.maxRelayEpisode=1", 'did you mean "maxReplayEpisode"?'),
    ("spec.replay={replaySampleFn: 'a:b', samplesPerStep: 9}", "samplesPerStep", "remove it; got 9"),
    ("spec.optimizer.betas=[0.9]", "[1]", "is required and missing"),
    ("spec.optimizer.betas=[0.9, .nan]", "[1]", "must be finite; got nan"),
    ("spec.optimizer.learningRate='1e-5'", "must be a valid number; got '1e-5'"),
    ("spec.reward.functions[0].function=a.b", "package.module:name"),
    (
        "spec.reward.functions=[{function: 'a:b', name: n, url: 'http://h'}]",
        "[0]",
        "exactly one of function, url and program; got function and url",
    ),
    ("spec.reward.functions=[{name: n}]", "[0]", "exactly one of"),
    (
        "spec.reward.functions=[{function: 'a:b', secretHeaders: {Authorization: TOKEN}}]",
        "[0]",
        "secretHeaders applies only to url, which is not set; set it, or remove this",
    ),
    (
        "spec.reward.functions=[{name: n, url: 'http://h', secretHeaders: {Authorization: RLHF_TOKEN}}]",
        "[0]",
        "RLHF_TOKEN is the operator's own",
    ),
    (
        "spec.reward.functions=[{name: n, url: 'http://h', secretHeaders: {Content-Type: TYPE}}]",
        "[0]",
        "Content-Type is set by the request itself",
    ),
    ("spec.reward.functions=[{url: 'http://h'}]", "[0]", "needs a name"),
    (
        "spec.reward.functions=[{name: n, url: 'http://h', failureScore: -1}]",
        "[0]",
        "failureScore applies only to function and program; a url scores every",
    ),
    ("spec.reward.functions[0].failureScore=1e39", "must be less than or equal to 34028234663852886"),
    ("spec.reward.functions=[{name: n, url: 'http://u:p@h'}]", "[0].url", "no user"),
    (
        "spec.reward.functions=[{function: 'a:b'}, {function: 'c:b'}]",
        "[1].name",
        "two rewards are 'b' in the metrics; give this one another name",
    ),
    ("spec.reward.clip=[1, 0]", "the lower bound must be below the upper; got [1.0, 0.0]"),
    ("spec.trainer.microBatchTokens=100", "use at least 768; got 100"),
    ("spec.trainer.sequenceParallelSize=2", "sequenceParallelSize", "must divide the 1 ranks"),
    ("spec.generator.replicas=0", "got 0"),
    ("spec.generator.engineArguments.max_model_len=9", "engineArguments.max_model_len", "max-model-len"),
    ("spec.generator.engineArguments.dtype=half", "engineArguments.dtype", "spec.generator.dtype"),
    *(
        (f"spec.checkpoint.store={url}", "spec.checkpoint.store", "begins with file:///, s3://")
        for url in ("http://x/y", "file://runs/x", "s3://x/run#1", "s3://x/run?1", "s3://x//run")
    ),
    ("spec.env.RLHF_TOKEN=x", "are reserved; use another name; got 'x'"),
    ("spec.env={A: 1}", ".A", "must be text; put it in quotes; got 1"),
    ("spec.surprise={1: 2}", ".1", "a key must be text; put it in quotes; got 1"),
    ("spec.evaluation.data=[x]", "spec.evaluation.function", "is required and missing"),
    ("metadata.name=My_Job", "must be at most 40 of a-z, 0-9 and -"),
    ("metadata.name=7b-ppo", "begin with a letter"),
    ("kind=Job", "is none of RLHFJob"),
    ("apiVersion=v1", "'v1' is none of rlhf.dev/v1alpha1"),
    (
        "spec.checkpoint={startFrom: {store: 's3://bucket/other', step: 4}}",
        ".startFrom.step",
        "must be below spec.steps (4), the steps of the whole run; got 4",
    ),
    (
        "spec.checkpoint={store: 's3://bucket/one', startFrom: {store: 's3://bucket/one/', step: 2}}",
        ".startFrom.store",
        "is this run's own spec.checkpoint.store; name another one there; got",
    ),
]


@pytest.mark.parametrize("case", BAD, ids=[bad[0] for bad in BAD])
def test_problem_names_field_value_and_remedy(case: tuple[str, ...]) -> None:
    assert_refused(*case)


def test_ranks_that_share_sequences() -> None:
    two = ("spec.trainer.processesPerReplica=2", "spec.trainer.sequenceParallelSize=2")
    job(*two, "spec.trainer.microBatchTokens=384")  # so the longest response fits two of them
    for override, words in {
        "spec.trainer.microBatchTokens=383": "which 2 ranks share; use at least 384; got 383",
        "spec.trainer.attention=padded": "needs packed sequences; use auto; got padded",
        "spec.algorithm=reward": "a reward model reads its score at one token alone; use 1; got 2",
    }.items():
        assert words in str(refusals(*two, override))


def test_all_problems_are_told_at_once() -> None:
    messages = refusals("spec.steps=0", "spec.ppo.gamma=2", "spec.x=1")
    assert [*messages] == ["spec.ppo.gamma", "spec.steps", "spec.x"]


def test_a_valid_manifest_has_its_values_and_defaults() -> None:
    spec = job("spec.ppo.clipValue=0.0", "spec.reference.dtype=float32").spec
    assert (spec.ppo.clip_value, spec.ppo.clip_ratio) == (0.0, 0.2)
    assert spec.trainer.deepspeed.raw() == {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}


def test_a_critic_takes_the_trainers_deepspeed_but_no_precision_of_another_dtype() -> None:
    whole = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    shared, single = job().spec, job("spec.trainer.criticDtype=float32").spec
    own = job("spec.trainer.criticDeepspeed={zero_optimization: {stage: 2}}").spec
    assert shared.trained_deepspeed("critic").raw() == whole
    assert single.trained_deepspeed("critic").raw() == {"zero_optimization": {"stage": 1}}
    assert own.trained_deepspeed("critic").raw() == {"zero_optimization": {"stage": 2}}
    assert all(spec.trained_deepspeed("policy").raw() == whole for spec in (shared, single, own))
    assert (single.trained_dtype("policy"), single.trained_dtype("critic")) == ("bfloat16", "float32")


FILES = [
    ("a: 1\na: 2\n", ":2:1: is not valid YAML: the key 'a' appears twice in one object; remove one"),
    ("a: [1\n", "is not valid YAML"),
    ("a: \t1\n\tb: 2", ":1:4: is not valid YAML"),
    ("", "must hold one RLHFJob; it holds 0 documents"),
    ("a: 1\n---\nb: 1\n", "it holds 2 documents"),
    ("- 1\n", "must be one RLHFJob object; it holds a list"),
    ("a: !!python/object:os.system {}\n", "is not valid YAML"),
    ("x: &a [*a, *a]\n", "contains itself"),
    ("spec: &a [*a]\n", "contains itself"),
    ("spec: {trainer: {deepspeed: &a {zero_optimization: *a}}}\n", "contains itself"),
    ("spec: {suspend: !!bool maybe}\n", "is not valid YAML"),
    ("spec: {steps: !!int ''}\n", "is not valid YAML"),
    ("spec: {name: !!timestamp x}\n", "is not valid YAML"),
    ("x: " + "9" * 5000, "is not valid YAML"),
    ("[" * 5000, "is not valid YAML"),
    ("spec: {x: !!binary aGk=}\n", "bytes is not a JSON value"),
    ('spec: {x: "\\0"}\n', "must hold no NUL character"),
]


@pytest.mark.parametrize(("text", "words"), FILES, ids=[repr(text[:40]) for text, _ in FILES])
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(InvalidJob) as caught:
        load(file)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    for file, words in (
        (tmp_path, "directory"),
        (tmp_path / "no", "No such"),
        (tmp_path / "latin.yaml", "UTF-8"),
    ):
        with pytest.raises(InvalidJob) as caught:
            load(file)
        assert str(file) in str(caught.value)
        assert words in str(caught.value)


def test_yaml_traps(tmp_path: Path) -> None:
    """A byte order mark is no part of the first key, 1e-6 is a number, a date is text."""
    file = tmp_path / "job.yaml"
    made = document("metadata.labels.day=2026-01-01")
    text = yaml.safe_dump(made).replace("'2026-01-01'", "2026-01-01").replace("1.0e-05", "1e-5")
    assert "day: 2026-01-01" in text
    assert "learningRate: 1e-5" in text
    file.write_text("\ufeff" + text, encoding="utf-8")
    read = load(file)
    assert read.spec.optimizer.learning_rate == 1e-5
    assert read.metadata.labels == {"day": "2026-01-01"}


def test_overrides(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document()))
    read = load(file, ["spec.optimizer.learningRate=1e-4", "spec.data.train[0]=a=b.jsonl", "spec.seed=7"])
    assert read.spec.optimizer.learning_rate == 1e-4
    assert read.spec.data.train == ("a=b.jsonl",)
    assert read.spec.seed == 7
    assert load(file).spec.seed == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("spec.steps", "must be path=value"),
        ("=3", "must be path=value"),
        ("spec..steps=3", "must be path=value"),
        ("spec.steps.x=3", "'x' is not a field of 4"),
        ("spec.data.train[1]=x", "there is no item [1] in"),
        ("spec.data.train[x]=x", "there is no item [x] in"),
        ("spec.data.train[²]=x", "there is no item [²] in"),
        ("spec.model[0]=x", "there is no item [0] in"),
        ("spec.steps=[", "is not valid YAML"),
        ("spec.stepz=3", 'did you mean "steps"?'),
    ],
)
def test_bad_overrides(override: str, words: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job(override)
    assert words in str(caught.value)


def test_run_config_round_trip() -> None:
    config = RunConfig(job="job", spec=job("spec.reward.clip=null").spec, workdir="/w", resume=True)
    again = RunConfig.model_validate_json(config.model_dump_json(by_alias=True))
    assert again == config
    assert again.spec.trainer.deepspeed.raw() == config.spec.trainer.deepspeed.raw()
    assert (config.store, again.spec.reward.clip) == ("s3://bucket/prefix", None)


@pytest.mark.parametrize(
    ("shared", "overrides", "turns"),
    [
        (True, (), True),
        (False, (), False),
        (True, ("spec.rollout.maxStaleness=1", "spec.sampling={}"), False),
        (True, ("spec.replay.streamDataLoaderType=dynamic", "spec.sampling={}"), False),
        (True, ("spec.weights.everySteps=2", "spec.sampling={}"), False),
        (True, ("spec.generator.sharedWithTrainer=true",), False),
    ],
)
def test_processes_on_the_same_gpus_take_turns_where_generation_never_overlaps_with_training(
    shared: bool, overrides: tuple[str, ...], turns: bool
) -> None:
    config = RunConfig(job="job", spec=job(*overrides).spec, workdir="/w", shared_gpus=shared)
    again = RunConfig.model_validate_json(config.model_dump_json(by_alias=True))
    assert (again.shared_gpus, again.takes_turns) == (shared, turns)


def paths(node: object, prefix: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [prefix, *(path for key, value in inner for path in paths(value, (*prefix, key)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    where=st.sampled_from(paths(document())[1:]),
    action=st.sampled_from(["set", "drop", "add"]),
    value=JSON,
    key=st.text(max_size=9),
)
def test_no_mutation_does_anything_but_pass_or_explain(
    where: tuple[object, ...], action: str, value: object, key: str
) -> None:
    made = document()
    node = made
    for part in where[:-1]:
        node = node[part]
    if action == "drop":
        del node[where[-1]]
    elif action == "add" and isinstance(node[where[-1]], dict):
        node[where[-1]][key] = value
    else:
        node[where[-1]] = value
    try:
        parsed = parse(made)
    except InvalidJob as error:
        problems = error.problems
    else:
        assert isinstance(parsed, RLHFJob)
        return
    assert problems
    assert all(p.where and p.message and "\n" not in str(p) for p in problems)


def test_the_contract_needs_nothing_but_pydantic_and_yaml() -> None:
    script = (
        "import sys, pkgutil, importlib, rlhf_api\n"
        "for m in pkgutil.walk_packages(rlhf_api.__path__, 'rlhf_api.'): importlib.import_module(m.name)\n"
        "print(sorted({'torch', 'aiohttp', 'numpy', 'rich', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "[]"


def test_without_settings_nothing_is_replayed() -> None:
    assert (job().spec.replay.window, job().spec.replay.sampler) == (0, "uniform")


def test_the_replay_buffer_is_for_answers_that_are_generated() -> None:
    with pytest.raises(
        InvalidJob,
        match=r"^spec.replay.maxReplayEpisode: applies only to sampled responses, and the job has none: sft trains",
    ):
        job("spec.algorithm=sft", "spec.ppo={}", "spec.replay.maxReplayEpisode=1")
    with pytest.raises(InvalidJob, match=r"streamDataLoaderType: dynamic trains while generators answer"):
        job("spec.generator.sharedWithTrainer=true", "spec.replay.streamDataLoaderType=dynamic")

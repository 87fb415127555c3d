"""Keys of files and overrides may be in snake_case; what is submitted is in camelCase, and users' own keys stay."""

from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_snake
from tests.unit.api.manifests import document, job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import apply_override, composed, load, parse


def written(folder: Path, name: str = "job.yaml", **spec: object) -> Path:
    file, made = folder / name, document()
    made["spec"] |= spec
    file.write_text(yaml.safe_dump(made))
    return file


def test_files_and_overrides_in_snake_case(tmp_path):
    file = written(
        tmp_path, sampling={"top_k": 0, "top_p": 0.5}, ppo={"kl_coefficient": 0.2, "minibatchSize": 8}
    )
    made = composed(file, ["sampling.max_new_tokens=5", "spec.rollout={max_staleness: 0}", "api_version=v"])
    assert made["spec"]["sampling"] == {"topK": 0, "topP": 0.5, "maxNewTokens": 5}
    assert made["spec"]["ppo"] == {"klCoefficient": 0.2, "minibatchSize": 8}
    assert made["spec"]["rollout"] == {"maxStaleness": 0}
    assert made["apiVersion"] == "v"
    spec = load(file, ["reward.functions[0].timeout_seconds=7", "checkpoint.every_steps=3"]).spec
    assert (spec.sampling.top_k, spec.reward.functions[0].timeout_seconds) == (0, 7)
    assert spec.checkpoint.every_steps == 3


def test_an_included_file_may_spell_a_field_otherwise(tmp_path):
    written(tmp_path, "base.yaml", sampling={"topP": 0.5})
    (tmp_path / "job.yaml").write_text("include: [base.yaml]\nspec: {sampling: {top_p: 0.9}}\n")
    assert composed(tmp_path / "job.yaml")["spec"]["sampling"] == {"topP": 0.9}


def test_both_spellings_of_a_field_are_told(tmp_path):
    file = written(tmp_path, sampling={"topP": 0.5, "top_p": 0.5})
    with pytest.raises(InvalidJob) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}: spec.sampling.top_p: is the same field as topP, which is there too; remove one of them"
    )
    with pytest.raises(InvalidJob, match=r"^spec.sampling.top_p: is the same field as topP"):
        apply_override(document(), "sampling={topP: 1, top_p: 1}")


FORMER = (
    ("sampling", "answersPerPrompt", "responsesPerPrompt", 4),
    ("sampling", "answerEndId", "responseEndId", 7),
    ("data", "maxAnswerLength", "maxResponseLength", 512),
)


@pytest.mark.parametrize(("section", "former", "key", "value"), FORMER)
def test_a_field_is_read_by_the_name_of_an_earlier_release(section, former, key, value, tmp_path):
    stored, now = document(f"spec.{section}.{key}={value}"), job(f"spec.{section}.{key}={value}")
    stored["spec"][section][former] = stored["spec"][section].pop(key)
    assert parse(stored) == now, "as an API server has it"
    file = written(tmp_path, **{section: stored["spec"][section]})
    assert load(file) == now
    assert composed(file)["spec"][section][key] == value, "as it is submitted"
    made = composed(file, [f"{section}.{to_snake(former)}={value}"])
    assert made == composed(file), "in snake_case, in place of what is there"
    stored["spec"][section][key] = value
    with pytest.raises(
        InvalidJob, match=rf"spec.{section}.{former}: is the former name of {key}, which is there too"
    ):
        parse(stored)


def test_environment_variables_are_read_by_their_former_name(tmp_path, capsys):
    made = document()
    made["spec"]["environment"] = {**made["spec"].pop("env"), "top_p": "a"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(made))
    assert parse(made).spec.env == load(tmp_path / "job.yaml").spec.env == made["spec"]["environment"]
    note = f"{tmp_path / 'job.yaml'}: spec.environment: read as spec.env, the present name of variables of processes"
    assert capsys.readouterr().err == f"{note}\n"
    assert composed(tmp_path / "job.yaml", ["env.B=b"])["spec"]["env"]["top_p"] == "a"
    assert composed(tmp_path / "job.yaml", ["environment.B=b"])["spec"]["env"]["B"] == "b"
    assert (
        "environment" not in parse(made).model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    )
    made["spec"]["env"] = {"B": "b"}
    with pytest.raises(InvalidJob, match=r"spec.environment: is the former name of env, which is there too"):
        parse(made)
    del made["spec"]["env"]
    made["spec"]["environment"] = {"A": 1}
    with pytest.raises(InvalidJob, match=r"spec.environment: .* so it is read as env; A must be text there"):
        parse(made)


def test_an_environment_of_episodes_is_told_from_variables_by_its_fields(tmp_path):
    file = written(
        tmp_path, environment={"path": "guess.py:Guess", "max_tokens": 300, "settings": {"low_end": 1}}
    )
    section = {"path": "guess.py:Guess", "maxTokens": 300, "settings": {"low_end": 1}, "turnSeconds": 7}
    assert composed(file, ["environment.turn_seconds=7"])["spec"]["environment"] == section
    spec = load(file).spec
    assert (spec.environment.path, spec.env) == ("guess:Guess", document()["spec"]["env"])
    made = document()
    made["spec"]["environment"] = {"path": "guess:Guess", "turn": 4}
    with pytest.raises(InvalidJob, match=r'spec.environment.turn: unknown field .* did you mean "turns"'):
        parse(made)


def test_a_metric_is_read_by_its_former_name():
    rule = job("spec.health.rules=[{metric: answer_length_mean, above: 5, action: warn}]").spec.health.rules[
        0
    ]
    assert rule.metric == "response_length_mean"
    with pytest.raises(InvalidJob, match=r"rules\[0\].metric: must be a valid string"):
        job("spec.health.rules=[{metric: [answer_length_mean], above: 5, action: warn}]")


OWN = (
    "trainer.deepspeed={zero_optimization: {stage: 1, reduce_bucket_size: 5}}",
    "env={top_p: a, max_new_tokens: b}",
    "generator.engineArguments={max_model_len: 5}",
    "trackers=[{kind: wandb, settings: {top_p: 1}}]",
    "custom.settings={top_p: 1}",
    "model.create.config={top_p: 1}",
    "pods.template={spec: {top_p: 1}}",
    "pods.nodeSelector={top_p: x}",
    "metadata.labels={api_version: x}",
    "reward.functions[0].secretHeaders={top_p: X}",
)


@pytest.mark.parametrize("override", OWN)
def test_keys_of_users_are_never_renamed(override):
    """Keys of maps, and those of DeepSpeed's configuration, keep their underscores."""
    made: object = apply_override(document(), override)
    for key in (
        ("" if override.startswith("metadata") else "spec.").__add__(override.split("=")[0]).split(".")
    ):
        name, _, index = key.partition("[")
        made = made[name]  # type: ignore[index]
        made = made[int(index[:-1])] if index else made  # type: ignore[index]
    assert made == yaml.safe_load(override.partition("=")[2])


def test_a_cluster_takes_camel_case_alone():
    made = document()
    made["spec"]["sampling"] = {"top_p": 0.5}
    with pytest.raises(InvalidJob, match=r'^spec.sampling.top_p: unknown field .*did you mean "topP"'):
        parse(made)

"""Manifests made of several files, of variables and of overrides."""

import json
import os
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from tests.unit.api.manifests import document

from rlhf_api.dataset.row_files import RowFile
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.strict_yaml import dumped
from rlhf_api.manifest.includes import read
from rlhf_api.manifest.load import apply_override, composed, load, parse
from rlhf_operator import cli


def files(folder: Path, **texts: str) -> Path:
    """Writes NAME.yaml for each, and returns the path of `job.yaml`."""
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / "job.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${STEPS:40}", 40),
        ("${SET}", 7),
        ("'${SET}'", "7"),
        ("!!str ${SET}", "7"),
        ("s3://${BUCKET:b}/${SET}", "s3://b/7"),
        ("${STORE:s3://bucket/a:b}", "s3://bucket/a:b"),
        ("${EMPTY}", None),
        ("${EMPTY:1}", None),
        ("'${NONE:}'", ""),
        ("$${SET} $SET $$", "${SET} $SET $$"),
        ("${NESTED}", "${SET}"),
        ("${LIST}", "[1, 2]"),
        ("[a, '${SET}']", ["a", "7"]),
        ("&x ${ESCAPED}", "$${SET}"),
    ],
)
def test_variables_are_replaced_in_values(tmp_path: Path, text: str, value: Any) -> None:
    variables = {"SET": "7", "EMPTY": "", "NESTED": "${SET}", "LIST": "[1, 2]", "ESCAPED": "$${SET}"}
    assert read(files(tmp_path, job=f"a: {text}\n"), variables) == {"a": value}


def test_neither_keys_nor_aliases_are_replaced(tmp_path: Path) -> None:
    job = files(tmp_path, job="${A}: &x ${B}\nb: *x\n")
    assert read(job, {"B": "$${C}"}) == {"${A}": "$${C}", "b": "$${C}"}


def test_every_variable_that_is_missing_is_told_with_its_place(tmp_path: Path) -> None:
    job = files(tmp_path, job="a: ${ONE}\nb: ${TWO\nc: [x, '${THREE}']\nd: ${4:1}\n")
    with pytest.raises(InvalidJob) as caught:
        read(job, {})
    reported = [(p.where.removeprefix(str(tmp_path)), p.message) for p in caught.value.problems]
    assert [where for where, _ in reported] == [
        "/job.yaml:1:4",
        "/job.yaml:2:4",
        "/job.yaml:3:8",
        "/job.yaml:4:4",
    ]
    assert reported[0][1] == "the environment variable ONE is not set; set it, or write ${ONE:default}"
    assert "got '${TWO'" in reported[1][1]
    assert "got '${4:1}'" in reported[3][1]


def test_a_file_stands_over_what_it_includes_and_the_later_over_the_earlier(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    files(
        tmp_path / "shared",
        base="include: [deep.yaml]\na: {x: 1, y: 1}\nl: [1, 2]\n",
        deep="a: {x: 0, w: 0}\n",
    )
    job = files(
        tmp_path, job="include: [shared/base.yaml, two.yaml]\na: {z: 3}\nl: [3]\n", two="a:\n  y: ${Y:2}\n"
    )
    assert read(job, {}) == {"a": {"x": 1, "w": 0, "y": 2, "z": 3}, "l": [3]}


def test_a_null_takes_an_included_field_or_section_back(tmp_path: Path) -> None:
    base = {**document(), "spec": {**document()["spec"], "seed": 7, "weights": {"everySteps": 1}}}
    job = files(
        tmp_path,
        base=yaml.safe_dump(base),
        job="include: [base.yaml]\nspec: {seed: null, weights: null, workspace: {claim: null}}\n",
    )
    assert read(job, {})["spec"].keys() - document()["spec"].keys() == {"workspace"}
    assert load(job).spec.weights == load(files(tmp_path, job=yaml.safe_dump(document()))).spec.weights


def test_the_manifest_itself_may_be_a_pipe() -> None:
    """As `rlhf validate <(kustomize build)` has it."""
    end, begin = os.pipe()
    os.write(begin, yaml.safe_dump(document()).encode())
    os.close(begin)
    try:
        assert load(Path(f"/dev/fd/{end}")).metadata.name == "job"
    finally:
        os.close(end)


COMMANDS = (
    *(
        ("validate", "--no-files"),
        ("validate", "sft", "steps=1", "model.policy=p", "data.train=[d]", "--runtime"),
        ("run",),
        ("run", "--mode", "kubernetes"),
    ),
    *(("plan",), ("render",), ("graph",), ("data", "check"), ("submit",), ("selftest",)),
    ("clone", "--from-step", "1"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_env_takes_nothing_of_the_environment_into_a_strangers_manifest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "4711")
    base = files(tmp_path, base=yaml.safe_dump(document()))
    job = files(base.parent, job="include: [base.yaml]\nspec:\n  seed: ${SEED:3}\n  steps: ${STEPS}\n")
    assert cli.main([*command, str(job), "--no-env"]) == 2
    captured = capsys.readouterr()
    message = "takes the environment variable STEPS, which --no-env refuses; write its value"
    assert (captured.out, captured.err) == ("", f"error: {job}:4:10: {message}\n")


def test_includes_that_cannot_be_are_told_together(tmp_path: Path) -> None:
    job = files(tmp_path, job="include: [none.yaml, a.yaml, b.yaml]\n", a="include: [job.yaml]\n", b="- 1\n")
    with pytest.raises(InvalidJob) as caught:
        read(job, {})
    none, cycle, listed = map(str, caught.value.problems)
    assert none.startswith(f"{job}: include[0]: {tmp_path}/none.yaml is not a file")
    assert cycle == f"{tmp_path}/a.yaml: include[0]: {tmp_path}/job.yaml includes itself; take it out"
    assert listed == f"{tmp_path}/b.yaml: must be one object; it holds a list"
    with pytest.raises(InvalidJob, match=r"must be a list of files; got 'base\.yaml'"):
        read(files(tmp_path, job="include: base.yaml\n"), {})


def test_overrides_stand_over_all_files_and_spec_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPS", "12")
    base = yaml.safe_dump(document())
    job = files(tmp_path, base=base, job="include: [base.yaml]\nspec: {steps: 9, seed: 3}\n")
    assert load(job, ["ppo.gamma=0.5", "spec.steps=8"]).spec.steps == 8
    assert cli.main(["render", str(job), "ppo.gamma=0.5", "--set", "metadata.name=other"]) == 0
    rendered = yaml.safe_load(capsys.readouterr().out)
    assert rendered == composed(job, ["ppo.gamma=0.5", "metadata.name=other"])
    assert parse(rendered).spec.ppo.gamma == 0.5
    assert (rendered["metadata"]["name"], rendered["spec"]["steps"], rendered["spec"]["seed"]) == (
        "other",
        9,
        3,
    )
    assert "include" not in rendered


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("OMP_NUM_THREADS=2", "2"),
        ("A=on", "on"),
        ("A='2'", "2"),
        ("A=1e-6", "1e-6"),
        ("A=", ""),
        ("A={a: 1}", "{a: 1}"),
    ],
)
def test_a_value_of_the_environment_is_text_without_quotes(override: str, value: str) -> None:
    key = override.partition("=")[0]
    made = apply_override(document(), f"spec.env.{override}")
    assert parse(made).spec.env[key] == value


@pytest.mark.parametrize(
    "text", ["1e-6", "5e8", "1234e56", "on", "1:30", "2026-01-01", "1_000", "~", "é", " x"]
)
def test_text_is_text_again_in_what_is_rendered(text: str, tmp_path: Path, capsys) -> None:
    """Whatever YAML, or Kubernetes, would take it for without quotes."""
    made = document()
    made["spec"]["env"] = {"A": text}
    made["metadata"]["labels"] = {"commit": text.strip()}
    file = tmp_path / "job.yaml"
    file.write_text(dumped(made), encoding="utf-8")
    assert cli.main(["render", str(file)]) == 0
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    read = load(file)
    assert read.spec.env == {"A": text}
    assert read.metadata.labels == {"commit": text.strip()}


def test_an_unknown_field_hides_no_rule_between_fields() -> None:
    made = apply_override(document(), "spec.surprise=1")
    made = apply_override(made, "spec.ppo.minibatchSize=9")
    made = apply_override(made, "spec.ppo.surprise={a: 1}")
    with pytest.raises(InvalidJob) as caught:
        parse(made)
    assert {p.where for p in caught.value.problems} == {
        "spec.surprise",
        "spec.ppo.surprise",
        "spec.ppo.minibatchSize",
    }


ROOT = Path(__file__).parents[4]
MODELS = {"spec.model.policy", "spec.model.critic", "spec.model.reward"}


def leaves(node: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {at: node}
    return {k: v for key, value in node.items() for k, v in leaves(value, f"{at}.{key}".lstrip(".")).items()}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (
            "small",
            "larger",
            {
                *MODELS,
                "spec.trainer.processesPerReplica",
                "spec.trainer.deepspeed.zero_optimization.stage",
                "spec.reference.replicas",
                "spec.reward.replicas",
            },
        ),
        ("larger", "llama", {*MODELS, "spec.data.chatTemplate"}),
        ("llama", "vllm", {"spec.generator.sharedWithTrainer", "spec.generator.tensorParallelSize"}),
    ],
)
def test_the_scenarios_differ_in_what_they_say(before: str, after: str, changed: set[str]) -> None:
    old, new = (
        leaves(composed(ROOT / "examples" / "scenarios" / f"{name}.yaml")) for name in (before, after)
    )
    assert {at for at in {*old, *new} if old.get(at) != new.get(at)} == changed
    load(ROOT / "examples" / "scenarios" / f"{after}.yaml")


def test_the_chat_template_of_the_scenario_renders_turns() -> None:
    document = composed(ROOT / "examples" / "scenarios" / "llama.yaml")
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    made = jinja2.Template(document["spec"]["data"]["chatTemplate"], trim_blocks=True, lstrip_blocks=True)
    text = made.render(messages=turns, add_generation_prompt=True)
    assert text == "Human:\na\nAssistant:\nb\nHuman:\nc\nAssistant:\n"


SECRET = "wJalrXUtnFEMIK7MDENG"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("token", f"eyJhbGciOi.{SECRET}"),
        ("token", f"*{SECRET}"),
        ("token", f"!{SECRET} x"),
        ("token", f"%{SECRET}\n"),
        ("token", f"!!int {SECRET}"),
        ("token", f"- {SECRET}\n- a"),
        ("token", f"a: {SECRET}"),
        ("key.json", json.dumps({"type": "service_account", "private_key": SECRET})),
        ("kubeconfig", f"apiVersion: v1\nkind: Config\nusers: [{{name: x, user: {{token: {SECRET}}}}}]\n"),
        ("values.yaml", f"steps: 1\npassword: {SECRET}\n"),
    ],
)
@pytest.mark.parametrize("as_include", [True, False])
def test_no_message_quotes_a_file_that_is_no_manifest(tmp_path, capsys, name, text, as_include) -> None:
    """A manifest that somebody else wrote may name any file of the machine that validates it."""
    (tmp_path / name).write_text(text)
    job = files(tmp_path, job=yaml.safe_dump({**document(), "include": [name]}))
    assert cli.main(["validate", str(job if as_include else tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert SECRET not in error


def test_no_message_quotes_a_file_that_holds_no_rows(tmp_path: Path) -> None:
    (tmp_path / "token.jsonl").write_text(SECRET)
    with pytest.raises(InvalidJob, match="is not valid JSON") as caught:
        list(next(iter([RowFile(tmp_path / "token.jsonl", "prompts")])))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "steps: ${KEY_OF_STORE}",
        "model: {policy: '/none/${KEY_OF_STORE}'}",
        "model: {policy: '${LONG_ONE}'}",
        "seeds: '${KEY_OF_STORE}'",
        "algorithm: ${KEY_OF_STORE}",
        "steps: 0x${NUMBER}",
        "seed: ${NUMBER}",
        "seed: ${SHORT}",
    ],
)
def test_a_message_names_a_variable_and_quotes_no_value_of_one(tmp_path, capsys, monkeypatch, text) -> None:
    """The environment of whoever validates is not that of whoever wrote the manifest."""
    values = {"KEY_OF_STORE": SECRET, "LONG_ONE": 12 * SECRET, "NUMBER": "987654321987654321", "SHORT": "-77"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    base = files(tmp_path, base=yaml.safe_dump(document()))
    job = files(base.parent, job=f"include: [base.yaml]\nspec:\n  {text}\n")
    assert cli.main(["validate", str(job)]) == 2
    error = capsys.readouterr().err
    (used,) = [name for name in values if name in text]
    assert f"${{{used}}}" in error or not any(value in error for value in values.values())
    assert not any(value[:8] in error for value in values.values() if len(value) > 8)
    assert "-77" not in error

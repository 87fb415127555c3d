"""Arguments of the verbs, and their error messages."""

import argparse
import json
import re
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from tests.unit.api.manifests import document, job

from rlhf_api.manifest.load import load, parse
from rlhf_api.sections.checkpoint import Origin
from rlhf_operator import cli
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.kubectl import kubectl_main
from rlhf_operator.verbs.argument_types import duration
from rlhf_operator.verbs.arguments import VERBS
from rlhf_operator.verbs.client import explain, passing
from rlhf_operator.verbs.clone import cloned
from rlhf_operator.verbs.submit import as_written
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.errors import StoreError
from rlhf_store.retention import Retention

CONTEXT = {"context": {"cluster": "c", "user": "u"}}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h2m3s", 3723)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5", "1.5h", "10 m", "5d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a duration such as 90s, 10m or 1h30m; got"):
        duration(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("status ../../x", "must be the name of an object of Kubernetes: a-z, 0-9, - and .; got '../../x'"),
        ("status ppo -n A", "must be the name of an object"),
        ("status ppo --watch -o json", "not allowed with"),
        ("logs", "the following arguments are required: NAME"),
        ("logs ppo --role cook", "invalid choice: 'cook'"),
        ("logs ppo --tail -1", "must be a whole number, 0 or more; got '-1'"),
        ("suspend ppo --no-wait --timeout 5m", "not allowed with"),
        ("scale ppo", "the following arguments are required: --generators"),
        ("scale ppo --generators 0", "must be a whole number, 1 or more; got '0'"),
        ("checkpoint ppo --timeout soon", "must be a duration"),
        ("clone ppo", "the following arguments are required: --from-step"),
        ("clone ppo --from-step 0", "must be a whole number, 1 or more; got '0'"),
        ("clone ../ppo --from-step 1", "must be the name of an object"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for main in (cli.main, kubectl_main):
        with pytest.raises(SystemExit) as end:
            main(arguments.split())
        assert end.value.code == 2
        assert message in capsys.readouterr().err


def test_help_lists_every_command_once_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    listed = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out, flags=re.M)
    assert end.value.code == 0
    assert sorted(listed) == sorted(cli._parser().commands.choices)


def test_rlhf_alone_says_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2
    assert "rlhf: error: give a COMMAND; to begin, `rlhf " in capsys.readouterr().err


def test_certificates_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = {"server": "https://127.0.0.1:9", "certificate-authority-data": "bm9uc2Vuc2U="}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "prod", **CONTEXT}],
    }
    file = tmp_path / "config"
    file.write_text(json.dumps(config))
    assert cli.main(["status", "ppo", f"--kubeconfig={file}", "--context=prod"]) == 1
    assert f"(context prod of {file}): its certificates cannot be used: " in capsys.readouterr().err


def test_a_whole_namespace_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--watch"]) == 2
    assert capsys.readouterr().err == (
        "error: --watch needs the NAME of a job; `kubectl get rlhfjobs --watch` follows them all\n"
    )


def test_both_programs_have_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for main, name in ((cli.main, "rlhf"), (kubectl_main, "kubectl rlhf")):
        for verb in VERBS:
            with pytest.raises(SystemExit) as end:
                main([verb, "--help"])
            assert end.value.code == 0
            assert f"usage: {name} {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, [], "there is no such kubeconfig; name one by --kubeconfig or KUBECONFIG"),
        ("{", [], "the kubeconfig is not valid YAML"),
        ("[]", [], "is not a kubeconfig: it must be an object"),
        ({"contexts": []}, [], "has no current context; choose one by --context: none"),
        ({"contexts": [{"name": "prod", **CONTEXT}]}, [], "choose one by --context: prod"),
        (
            {"contexts": [{"name": "prod", **CONTEXT}]},
            ["--context=prd"],
            "no context 'prd'; did you mean prod?",
        ),
        ({"contexts": [{"name": "prod", **CONTEXT}]}, ["--context=x"], "no context 'x'; there are: prod"),
        (
            {"contexts": [{"name": "prod", **CONTEXT}], "current-context": "prod"},
            [],
            "Expected object with name c in",
        ),
    ],
)
def test_a_kubeconfig_that_names_no_cluster(
    content: object, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert cli.main(["status", "ppo", f"--kubeconfig={file}", *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "message", "explanation", "again"),
    [
        (0, "GET /x: Cannot connect", "cannot reach CLUSTER: Cannot connect; is it up", True),
        (
            401,
            "GET /x: Unauthorized",
            "CLUSTER does not accept your credentials (Unauthorized); log in again",
            False,
        ),
        (
            403,
            'GET /x: rlhfjobs is forbidden: User "a" cannot patch resource "rlhfjobs"',
            'rlhfjobs is forbidden: User "a" cannot patch resource "rlhfjobs"; ask for the cluster\'s role',
            False,
        ),
        (
            403,
            'PATCH /x: admission webhook "w" denied the request: steps cannot be odd',
            'CLUSTER refused it: admission webhook "w" denied the request: steps cannot be odd',
            False,
        ),
        (
            403,
            'GET /x: rlhfjobs "a" is forbidden: exceeded quota: jobs, used: 5, limited: 5',
            'CLUSTER refused it: rlhfjobs "a" is forbidden: exceeded quota: jobs, used: 5, limited: 5',
            False,
        ),
        (409, "PATCH /x: conflict", "conflict", False),
        (415, "PATCH /x: no", "CLUSTER is too old: it does not know server-side apply", False),
        (422, "PATCH /x: spec.steps:\n must", "CLUSTER refused it: 422 spec.steps: must", False),
        (429, "GET /x: slow", "CLUSTER has too much to do (slow); try again", True),
        (503, "GET /x: etcd", "CLUSTER has failed: 503 etcd; try again", True),
    ],
)
def test_refusals_in_one_line(status: int, message: str, explanation: str, again: bool) -> None:
    error = ApiError(status, "Reason", message)
    assert explain(error, "CLUSTER").startswith(explanation)
    assert "\n" not in explain(error, "CLUSTER")
    assert passing(error) is again


def test_what_is_submitted_is_what_was_written() -> None:
    overrides = (
        "spec.trainer.backoffLimit=3",  # its default
        "spec.generator.engineArguments={compilation-config: {a: null, b: [1, {c: x}]}}",
        "metadata.labels={team: red}",
    )
    written = document(*overrides)
    metadata = {"name": "job", "namespace": "team", "labels": {"team": "red"}}
    assert as_written(job(*overrides), "team") == {**written, "metadata": metadata}
    assert as_written(job(*overrides, "spec.model.reference=null"), "team")["spec"] == written["spec"]


ORIGIN = Origin(store="s3://bucket/team/ppo", step=20)


@pytest.mark.parametrize(
    ("store", "own"),
    [
        ("s3://bucket/team/ppo", "s3://bucket/team/new"),
        ("s3://bucket/ppo/", "s3://bucket/new"),
        ("s3://bucket", "s3://bucket/new"),
        ("file:///data/ppo", "file:///data/new"),
        ("file:///checkpoints", "file:///new"),
        (None, None),
    ],
)
def test_a_clone_has_a_store_of_its_own(store: str | None, own: str | None) -> None:
    checkpoint = {"everySteps": 5, "resume": True, **({"store": store} if store else {})}
    before = document()
    before["spec"] |= {"suspend": True, "checkpoint": checkpoint}
    made = cloned(before, "new", ORIGIN)
    assert made["metadata"]["name"] == "new"
    assert made["spec"]["checkpoint"] == {
        "everySteps": 5,
        "startFrom": {"store": "s3://bucket/team/ppo", "step": 20},
        **({"store": own} if own else {}),
    }
    assert "suspend" not in made["spec"]
    assert before["spec"]["checkpoint"] == checkpoint


def test_a_clone_of_a_run_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, folder = tmp_path / "job.yaml", tmp_path / "runs" / "job"
    made = document("spec.steps=9", "spec.checkpoint.store=null")
    manifest.write_text(json.dumps(made))
    ask = ["clone", str(manifest), "--from-step=3", f"--workdir={folder}"]
    assert cli.main(ask) == 2
    assert f": there is no directory {folder}/checkpoints" in capsys.readouterr().err
    archive = Archive(f"file://{folder}/checkpoints")
    Committer.take_over(archive, Retention(last=1)).commit(2, {}, {}, {})
    assert cli.main(ask) == 2
    assert "has no checkpoint of step 3; it has those of steps: 2" in capsys.readouterr().err
    assert cli.main([*ask[:2], "--from-step=2", ask[3], "--set", "ppo.klCoefficient=0.5"]) == 0
    clone = parse(yaml.safe_load(capsys.readouterr().out))
    assert clone.metadata.name == "job-from-2"
    assert clone.spec.ppo.kl_coefficient == 0.5
    assert clone.spec.checkpoint.start_from == Origin(store=f"file://{folder}/checkpoints", step=2)
    assert clone.spec.checkpoint.store is None


def test_a_store_that_lists_and_cannot_be_read_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreError("s3://bucket/ppo: 403 Forbidden")

    manifest, folder = tmp_path / "job.yaml", tmp_path / "runs" / "job"
    manifest.write_text(json.dumps(document("spec.checkpoint.store=null")))
    Committer.take_over(Archive(f"file://{folder}/checkpoints"), Retention(last=1)).commit(2, {}, {}, {})
    monkeypatch.setattr(Archive, "open", refused)
    assert cli.main(["clone", str(manifest), "--from-step=2", f"--workdir={folder}"]) == 1
    assert capsys.readouterr().err == "error: s3://bucket/ppo: 403 Forbidden\n"


def test_run_in_mode_kubernetes_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The manifest, checked, with its overrides and its trial's name."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(document()))
    words = ["run", str(manifest), "steps=3", "--mode", "kubernetes", "--trial", "two"]
    assert cli.main(words) == cli.main(["submit", str(manifest), "steps=3", "--trial", "two"])
    run, submit = capsys.readouterr().err.splitlines()
    assert run == submit
    assert "there is no such kubeconfig" in run
    assert cli.main([*words, "--set", "steps=0"]) == 2
    assert "spec.steps: must be greater than or equal to 1; got 0" in capsys.readouterr().err
    assert cli.main([*words, "--workdir", "w"]) == 2
    assert capsys.readouterr().err == "error: --workdir applies only to --mode local; leave it out\n"


def test_a_trial_has_a_name_and_a_work_directory_of_its_own(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "hi"}\n')
    made = document("spec.data.train=[p.jsonl]", "spec.reward.functions=[]")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(made))
    assert load(tmp_path / "job.yaml", (), "two").metadata.name == "job-two"
    (tmp_path / "runs" / "job-two").mkdir(parents=True)
    (tmp_path / "runs" / "job-two" / "run.json").touch()
    assert cli.main(["run", "job.yaml", "--trial", "two"]) == 2
    assert "error: runs/job-two: an earlier run is in it" in capsys.readouterr().err
    assert cli.main(["run", "job.yaml", "--trial", "Two"]) == 2
    assert "--trial: must be at most 40 of a-z, 0-9 and -" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("validate",), "\nCheck a manifest, its data and its paths without running it.\n"),
        (("scale",), "\nChange the number of generators of a job, while it runs.\n"),
        (("replay", "ls"), "\nList the episodes.\n"),
    ],
)
def test_the_help_of_a_command_begins_with_what_it_does(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    assert says in capsys.readouterr().out

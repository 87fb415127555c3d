"""`rlhf` and `kubectl rlhf` against a real API server and operator; nodes on paper, a trainer that only talks."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.api_server.oldest.jobs import PPO, ROOT
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually, get, kubectl
from tests.support.kubernetes.operator import Jobs, Operator, TalkingTrainer
from tests.unit.operator.verbs.command import Verbs

from rlhf import Job

CHECKPOINT = {"step": 7, "time": "2026-01-01T00:00:00+00:00", "uri": "s3://bucket/ppo"}
SFT = ROOT / "examples" / "sentiment" / "sft.yaml"


@pytest.fixture
def trainer(talking: TalkingTrainer) -> TalkingTrainer:
    """As in the middle of a run."""
    talking.status = {
        "activity": "training",
        "step": 7,
        "totalSteps": 40,
        "rewardMean": 0.51234,
        "weightVersion": 7,
        "lastCheckpoint": CHECKPOINT,
    }
    talking.asked.clear()
    return talking


@pytest.fixture
def verbs(control_plane: Cluster, namespace: str, tmp_path: Path) -> Verbs:
    return Verbs(control_plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def running(served: Operator, trainer: TalkingTrainer, jobs: Jobs) -> Jobs:
    assert served
    assert trainer
    jobs.apply(PPO)
    jobs.until("ppo", "Running")
    return jobs


@pytest.mark.usefixtures("crd")
def test_a_manifest_is_checked_and_submitted_as_it_was_written(
    jobs: Jobs, verbs: Verbs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = verbs.run("submit", str(SFT), "--set", "spec.step=3", "--set", "spec.seed=-1")
    assert bad.code == 2
    assert 'error: spec.step: unknown field (value 3); did you mean "steps"?\n' in bad.err
    assert bad.err.count("\n") == 2
    assert not jobs.get("rlhfjobs")["items"]

    assert verbs.run("submit", str(SFT)).out == (
        f"{jobs.namespace}/sft created\n"
        f"follow it with `rlhf status sft --watch -n {jobs.namespace}`, its trainer with "
        f"`rlhf logs sft -f -n {jobs.namespace}`\n"
    )
    stored = jobs.get("rlhfjob", "sft")["spec"]
    assert {**stored, "generator": None} == {**yaml.safe_load(SFT.read_text())["spec"], "generator": None}
    assert "/sft unchanged\n" in verbs.run("submit", str(SFT)).out
    assert "/sft changed\n" in verbs.run("submit", str(SFT), "--set", "spec.steps=9").out
    from_python = Job.load(SFT).set(steps=9).submit(verbs.namespace, kubeconfig=str(verbs.kubeconfig))
    assert "/sft unchanged\n" in capsys.readouterr().out
    status = from_python.status()
    assert status is None or status.total_steps == 9, "None before an operator has seen it"

    rates = ("sweep", str(SFT), "optimizer.learningRate=[1e-4, 1e-3]", "--mode", "kubernetes")
    created = [line for line in verbs.run(*rates).out.splitlines() if line.endswith(" created")]
    names = [line.partition("/")[2].partition(" ")[0] for line in created]
    assert [jobs.get("rlhfjob", name)["spec"]["optimizer"]["learningRate"] for name in names] == [1e-4, 1e-3]

    jobs.patch("sft", steps=11)
    refused = verbs.run("submit", str(SFT))
    assert refused.code == 1
    assert ".spec.steps; take these fields over with --force-conflicts\n" in refused.err
    assert verbs.run("submit", str(SFT), "--force-conflicts").code == 0
    verbs.run("submit", str(SFT), "--set", "spec.weights.bucketMegabytes=8")
    removed = verbs.run("submit", str(SFT))  # of a whole section, which 1.20 cannot do
    assert removed.code == 0 or "set that field to its default instead of leaving it out" in removed.err
    elsewhere = verbs.run("submit", str(SFT), "--set", "metadata.namespace=other")
    assert elsewhere.code == 2
    assert "is for namespace other, and -n says" in elsewhere.err

    monkeypatch.chdir(SFT.parent)
    assert verbs.run("submit", str(SFT), "--force-conflicts", "--include", "judge.py").code == 0
    workspace = jobs.get("rlhfjob", "sft")["spec"]["workspace"]
    assert workspace == {"files": {"judge.py": Path("judge.py").read_text()}}


@pytest.mark.usefixtures("crd")
def test_jobs_that_are_not_there(jobs: Jobs, verbs: Verbs) -> None:
    assert verbs.run("status").err == f"There are no jobs in namespace {jobs.namespace}.\n"
    assert "there is none at all; is it in another namespace (-n)?" in verbs.run("logs", "ppo").err
    jobs.apply(PPO)
    for verb in (["status"], ["suspend"], ["checkpoint"], ["scale", "--generators=2"]):
        done = verbs.run(*verb, "pop")
        assert done.code == 1
        assert done.err == f"error: there is no job 'pop' in namespace {jobs.namespace}; did you mean ppo?\n"


@pytest.mark.usefixtures("crd")
def test_who_may_not_and_who_cannot_be_reached(control_plane: Cluster, jobs: Jobs, tmp_path: Path) -> None:
    jobs.apply(PPO)
    raw = kubectl(control_plane.kubeconfig, "config", "view", "--raw", "-o", "json")
    token = jobs.kubectl("create", "token", "default").strip()
    file = tmp_path / "config"
    anyone, wrong = ({"users": [{"name": "u", "user": {"token": text}}]} for text in (token, "wrong"))
    nowhere = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}]}
    for view, message in (
        (anyone, 'cannot get resource "rlhfjobs" in API group "rlhf.dev" in the namespace'),
        (wrong, "does not accept your credentials (Unauthorized); log in again"),
        (nowhere, "cannot reach http://127.0.0.1:9 (context odd of "),
    ):
        whole = json.loads(raw) | view
        chosen = {"cluster": whole["clusters"][0]["name"], "user": whole["users"][0]["name"]}
        whole |= {"contexts": [{"name": "odd", "context": chosen}], "current-context": ""}
        file.write_text(json.dumps(whole))
        done = Verbs(file, jobs.namespace, tmp_path).run("status", "ppo", "--context=odd")
        assert done.code == 1
        assert message in done.err
        assert done.err.count("\n") == 1


def test_status_shows_what_kubectl_shows_and_more(running: Jobs, verbs: Verbs) -> None:
    eventually(lambda: running.status("ppo")["roles"]["reward"]["ready"] == 1, "everyone is ready")
    ours, theirs = verbs.run("status").out, running.kubectl("get", "rlhfjobs")
    # Ages may differ by a second.
    assert [line.split()[:-1] for line in ours.splitlines()] == [
        line.split()[:-1] for line in theirs.splitlines()
    ]
    everywhere = [line.split() for line in verbs.run("status", "--all-namespaces").out.splitlines()]
    assert everywhere[0][:3] == ["NAMESPACE", "NAME", "PHASE"]
    # Other namespaces' jobs come and go between two calls.
    here = [line[:-1] for line in everywhere if line[0] == running.namespace]
    assert [line[:3] for line in here] == [[running.namespace, "ppo", "Running"]]
    assert [i["kind"] for i in json.loads(verbs.run("status", "-A", "-o", "json").out)["items"]]
    listed = [line.split()[:-1] for line in verbs.run("list", "--all-namespaces").out.splitlines()]
    assert [listed[0], *(line for line in listed if line[0] == running.namespace)] == [
        everywhere[0][:-1],
        *here,
    ]
    assert verbs.run("list").out.split()[:2] == ["NAME", "PHASE"]
    misused = verbs.run("status", "ppo", "-A")
    assert (misused.code, "leave out NAME" in misused.err) == (2, True)
    page = verbs.run("status", "ppo").out
    for text in (
        f"ppo  Running  training  (namespace {running.namespace}, made ",
        "]  step 7/40\nreward 0.5123  weights 7\ncheckpoint step 7, ",
        "trainer     1/1     0",
        "Events\n  ",
        "Normal   Running   the trainer is running\n",
    ):
        assert text in page
    stored = running.get("rlhfjob", "ppo")
    assert json.loads(verbs.run("status", "ppo", "-o", "json").out)["spec"] == stored["spec"]
    assert (
        json.loads(verbs.run("status", "-o", "json").out)["items"][0]["metadata"]["uid"]
        == stored["metadata"]["uid"]
    )


def test_a_watch_follows_a_job_to_its_end(
    running: Jobs, trainer: TalkingTrainer, verbs: Verbs, nodes: FakeNodes
) -> None:
    with verbs.start("status", "ppo", "--watch") as watch:
        watch.until("Running  step 7/40  reward 0.5123  weights 7  checkpoint 7\n")
        trainer.status |= {"step": 8}
        watch.until("Running  step 8/40")
        nodes.end(running.namespace, "ppo-trainer-0", 78, "ValueError: no such column")
        done = watch.end()
    assert done.code == 1
    assert "Failed: trainer-0 exited with code 78: ValueError: no such column" in done.out.splitlines()[-1]


def test_a_checkpoint_on_request_and_a_clone_from_it(
    running: Jobs, trainer: TalkingTrainer, verbs: Verbs, nodes: FakeNodes, tmp_path: Path
) -> None:
    late = verbs.run("checkpoint", "ppo", "--timeout=0s")
    assert late.code == 1
    assert "ppo has no new checkpoint after 0s: the trainer has not been asked yet (Running" in late.err
    eventually(lambda: trainer.asked == ["/v1/checkpoint"], "the trainer is asked nonetheless")
    with verbs.start("checkpoint", "ppo") as request:
        request.until("the trainer saves at the end of its step")
        assert trainer.asked == ["/v1/checkpoint"] * 2
        trainer.status |= {"step": 8, "lastCheckpoint": {**CHECKPOINT, "step": 8}}
        done = request.end()
    assert (done.code, done.out) == (0, "ppo: checkpoint of step 8 in s3://bucket/ppo\n")
    # Credentials for that store are the trainer's, not ours.
    clone = verbs.run("clone", "ppo", "--from-step=8", "--set", "ppo.klCoefficient=0.5")
    assert "warning: the checkpoint was not checked from here, the trainer will check it: " in clone.err
    (tmp_path / "clone.yaml").write_text(clone.out)
    made = verbs.run("submit", str(tmp_path / "clone.yaml"))
    assert made.out.startswith(f"{running.namespace}/ppo-from-8 created")
    stored, spec = running.get("rlhfjob", "ppo-from-8")["spec"], running.get("rlhfjob", "ppo")["spec"]
    assert stored["checkpoint"]["startFrom"] == {"store": "s3://bucket/ppo", "step": 8}
    assert stored["ppo"] == {**spec["ppo"], "klCoefficient": 0.5}
    assert stored["data"] == spec["data"]
    running.kubectl("delete", "rlhfjob", "ppo-from-8")
    early = verbs.run("clone", "ppo", "--from-step=9")
    assert (early.code, "ppo has no checkpoint of step 9; its newest is of 8" in early.err) == (1, True)
    nodes.end(running.namespace, "ppo-trainer-0", 0)
    running.until("ppo", "Succeeded")
    assert verbs.run("checkpoint", "ppo").err == (
        "error: ppo is Succeeded and saves nothing now; its newest checkpoint is of step 8, in s3://bucket/ppo\n"
    )


def test_why_a_pod_failed_that_is_gone(
    running: Jobs, trainer: TalkingTrainer, verbs: Verbs, nodes: FakeNodes
) -> None:
    lines = "one\ntwo\nRuntimeError: out of luck with hf_abcdefghijklmnopqr"
    nodes.end(running.namespace, "ppo-generator-0", 1, lines)
    eventually(lambda: running.status("ppo")["restarts"] == 1, "it is replaced")
    done = verbs.run("logs", "ppo", "--role=generator", "--previous")
    assert (done.code, done.out.splitlines()) == (
        0,
        ["generator-0 | one", "generator-0 | two", "generator-0 | RuntimeError: out of luck with ***"],
    )
    assert "generator-0 failed at 20" in done.err
    assert "by the label rlhf.dev/job=ppo" in done.err
    tail = verbs.run("logs", "ppo", "--role=all", "-p", "--tail=1", "--index=0").out
    assert tail == "generator-0 | RuntimeError: out of luck with ***\n"
    running.patch("ppo", suspend=True)
    eventually(lambda: trainer.asked, "the trainer is told to stop")
    nodes.end(running.namespace, "ppo-trainer-0", 79)
    running.until_pods(0)
    assert verbs.run("logs", "ppo", "--role=generator").out == done.out  # no pod is left to ask
    none = verbs.run("logs", "ppo", "-p")
    assert (none.code, "no failure is kept" in none.err) == (1, True)


def test_suspend_and_resume_wait_until_it_is_done(running: Jobs, verbs: Verbs, nodes: FakeNodes) -> None:
    with verbs.start("suspend", "ppo") as suspend:
        suspend.until("Running: suspending: waiting for the trainer's checkpoint")
        nodes.end(running.namespace, "ppo-trainer-0", 79)
        done = suspend.end()
    assert (done.code, done.out) == (
        0,
        "ppo is Suspended at step 7 of 40; its checkpoint of step 7 is in s3://bucket/ppo; let it go on with "
        "`rlhf resume ppo`\n",
    )
    assert "ppo is Suspended and saves nothing now" in verbs.run("checkpoint", "ppo").err
    done = verbs.run("resume", "ppo")
    assert (done.code, done.out) == (0, "ppo is Running at step 7 of 40\n")
    done = verbs.run("suspend", "ppo", "--no-wait")
    assert done.out == "ppo will be suspended; follow it with `rlhf status ppo --watch`\n"
    late = verbs.run("suspend", "ppo", "--timeout=2s")
    assert late.code == 1
    assert (
        "ppo is not suspended after 2s (Running: suspending: waiting for the trainer's checkpoint); it goes on"
        in late.err
    )
    nodes.end(running.namespace, "ppo-trainer-0", 0)
    running.until("ppo", "Succeeded")
    for verb in ("suspend", "resume"):
        done = verbs.run(verb, "ppo")
        assert done.code == 1
        assert f"ppo has succeeded already; what is over cannot be {verb.rstrip('e')}ed" in done.err


def test_scale(running: Jobs, verbs: Verbs) -> None:
    assert verbs.run("scale", "ppo", "--generators=2").out == "ppo: generators 1 -> 2\n"
    running.until_pods(5)
    verbs.run("submit", str(SFT))
    done = verbs.run("scale", "sft", "--generators=2")
    assert (done.code, done.err) == (1, "error: sft is a job of sft and has no generators\n")


def test_kubectl_runs_it_as_its_own(control_plane: Cluster, running: Jobs, tmp_path: Path) -> None:
    """With kubectl's kubeconfig, context and namespace."""
    for program, main in {"kubectl-rlhf": "kubectl_main", "kubectl_complete-rlhf": "complete_main"}.items():
        plugin = tmp_path / program
        plugin.write_text(
            f"#!{sys.executable}\nimport sys\nfrom rlhf_operator.kubectl import {main}\nsys.exit({main}())\n"
        )
        plugin.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    file = tmp_path / "config"
    file.write_text(kubectl(control_plane.kubeconfig, "config", "view", "--raw", "--flatten"))
    kubectl(file, "config", "set-context", "--current", f"--namespace={running.namespace}")

    def run(*arguments: str, before: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PATH": path, "KUBECONFIG": str(file)}
        command = ["kubectl", *before, "rlhf", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    assert f"ppo  Running  training  (namespace {running.namespace}, " in run("status", "ppo").stdout
    assert "follow it with `kubectl rlhf status ppo --watch`" in run("suspend", "ppo", "--no-wait").stdout
    assert get(control_plane.kubeconfig, "rlhfjob", "ppo", "-n", running.namespace)["spec"]["suspend"] is True
    assert run("resume", "p", before=["__complete"]).stdout.splitlines() == ["ppo", ":4"]
    assert run("resume", "-n", "default", "", before=["__complete"]).stdout.splitlines() == [":4"]
    missing = run("status", "ppo", "-n", "default")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "there is no job 'ppo' in namespace default" in missing.stderr
    assert run("status", "ppo", "--watch", "-o", "json").returncode == 2

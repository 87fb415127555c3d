"""Figures of a run to trackers: TensorBoard's and Weights & Biases' own clients, and classes of this test's own."""

import json
import logging
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tests.support.rlhf import succeed
from tests.support.tiny.models import tiny_model
from tests.unit.api.manifests import job

from rlhf_api.contract.samples import Sample
from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.metrics import tracking
from rlhf_trainer.metrics.builtin_trackers import Run, WandB
from rlhf_trainer.metrics.files import MetricsFiles
from rlhf_trainer.metrics.wandb_key import has_key

SAMPLE = Sample(
    step=3,
    prompt_id="0/1",
    prompt="What is 1 + 1?",
    response="**2**\n<script>",
    score=0.5,
    weight_version=2,
    prompt_length=5,
    response_length=2,
)
STEP = {"reward_mean": 0.5, "kl_mean": 0.01, "loss": float("nan"), "tokens": 128}


class Told:
    """A tracker from outside the package: keeps what it is told."""

    made: list["Told"] = []

    def __init__(self, run: Run, *, colour: str = "none") -> None:
        self.run, self.colour, self.lines, self.end = run, colour, [], None
        Told.made.append(self)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.lines.append((step, dict(figures)))

    def close(self, *, ok: bool) -> None:
        self.end = ok


class Refuses(Told):
    def log(self, *_arguments: Any) -> None:
        raise ConnectionError("nobody listens at tracker.example")


def never(_run: Run) -> Told:
    raise PermissionError("no key")


def tells_its_key(_run: Run) -> Told:
    raise PermissionError(f"not for {os.environ['TRACKER_TOKEN']}\nat all")


class Down:
    tried, over = threading.Event(), threading.Event()


def down_at_first(run: Run) -> Told:
    if not Down.over.is_set():
        Down.tried.set()
        raise ConnectionError("nobody listens")
    return Told(run)


class Hangs(Told):
    begun, released = threading.Event(), threading.Event()

    def log(self, *_arguments: Any) -> None:
        Hangs.begun.set()
        Hangs.released.wait(300)


class Host:
    """Keeps the last that it heard of trackers that fail."""

    failing: Sequence[str] = ()

    def hear(self, failing: Sequence[str]) -> None:
        self.failing = failing


HOST = Host()


def tracked(folder: Path, *trackers: dict[str, Any]) -> tracking.Tracking:
    spec = job(f"spec.trackers={json.dumps(trackers)}").spec
    return tracking.Tracking("job", spec, folder, report=HOST.hear)


def run(folder: Path, *trackers: dict[str, Any], first: int = 0, steps: int = 3, rollbacks: int = 0) -> None:
    """A run that goes on after step `first`."""
    with tracked(folder, *trackers) as feeds:
        metrics = MetricsFiles(folder, first, feeds, rollbacks=rollbacks)
        for step in range(first + 1, steps + 1):
            metrics.step({"step": step, **STEP})
            feeds.log_samples(step, [SAMPLE])
        metrics.evaluation({"step": steps, "set": "sums", "mean": 0.75})


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "SAMPLES_EVERY", 3)
    Told.made.clear()
    HOST.failing = ()


def here(name: str) -> str:
    return f"{__name__}:{name}"


def test_one_of_your_own_gets_figures_in_order_settings_and_the_manifest(tmp_path):
    run(tmp_path, {"kind": here("Told"), "project": "chats", "settings": {"colour": "red"}})
    (tracker,) = Told.made
    finite = {name: value for name, value in STEP.items() if name != "loss"}
    assert tracker.lines == [*((step, finite) for step in (1, 2, 3)), (3, {"evaluation/sums/mean": 0.75})]
    assert (tracker.colour, tracker.end, tracker.run.project, tracker.run.name) == (
        "red",
        True,
        "chats",
        "job",
    )
    assert tracker.run.manifest["algorithm"] == "ppo"


def test_no_tracker_gets_secrets_of_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "of-a-Secret")
    given = {"HF_TOKEN": "s3cr3t", "MLFLOW_TRACKING_URI": "https://me:s3cr3t@h", "A": "of-a-Secret", "B": "b"}
    overrides = (f"spec.env={json.dumps(given)}", f'spec.trackers=[{{"kind": "{here("Told")}"}}]')
    with tracking.Tracking("job", job(*overrides).spec, tmp_path) as feeds:
        feeds.begin(0, 0)
    (tracker,) = Told.made
    sent = tracker.run.manifest["env"]
    assert sent == {"HF_TOKEN": "***", "MLFLOW_TRACKING_URI": "https://me:***@h", "A": "***", "B": "b"}


def test_a_resumed_run_is_the_same_one_and_a_failed_one_ends_so(tmp_path):
    run(tmp_path, {"kind": here("Told")})
    feeds = tracked(tmp_path, {"kind": here("Told")})
    with suppress(KeyError), feeds:
        MetricsFiles(tmp_path, 2, feeds)
        raise KeyError("the run's own failure")
    first, second = Told.made
    assert first.run.id == second.run.id
    assert (first.run.step, second.run.step, second.end) == (0, 2, False)


def test_a_job_made_anew_in_the_work_directory_of_a_deleted_one_is_another_run(tmp_path):
    """Trackers keep the first value of a step: they would take none of the new job's until it is further."""

    def begun(identity: str, step: int) -> str:
        spec = job(f"spec.trackers=[{{kind: '{here('Told')}'}}]").spec
        with tracking.Tracking("job", spec, tmp_path, identity) as feeds:
            MetricsFiles(tmp_path, step, feeds)
        return Told.made[-1].run.id

    first = begun("uid-1", 0)
    assert begun("uid-1", 0) == first, "a trainer that died before its first checkpoint"
    again = begun("uid-2", 0)
    assert again != first
    assert begun("uid-2", 7) == again
    assert begun("uid-3", 7) == again, "a new job that goes on from there"


def told_by_tracking(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == tracking.__name__]


def test_those_that_fail_are_told_of_once_and_the_others_go_on(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    run(tmp_path, {"kind": here("Refuses")}, {"kind": here("never")}, {"kind": here("Told")}, steps=5)
    assert [len(tracker.lines) for tracker in Told.made if type(tracker) is Told] == [6]
    messages = sorted(line.removeprefix(f"tracker {__name__}:") for line in told_by_tracking(caplog))
    assert messages == [
        "Refuses did not take the figures of step 1: ConnectionError: nobody listens at tracker.example",
        "Refuses: 6 lines were not sent",
        "never cannot be begun, and is tried again every 60 s: PermissionError: no key",
        "never: 7 lines were not sent",  # one of them of samples
    ]
    assert [line.removeprefix(f"tracker {__name__}:") for line in HOST.failing] == [
        "Refuses did not take the figures of step 1: ConnectionError: nobody listens at tracker.example; "
        "6 lines were not sent",
        "never cannot be begun, and is tried again every 60 s: PermissionError: no key; 7 lines were not sent",
    ]


def test_the_host_hears_of_a_failing_tracker_during_the_run_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKER_TOKEN", "of-a-Secret")
    reported = threading.Event()
    monkeypatch.setattr(HOST, "hear", lambda failing: (setattr(HOST, "failing", failing), reported.set()))
    with tracked(tmp_path, {"kind": here("tells_its_key")}) as feeds:
        MetricsFiles(tmp_path, 0, feeds)
        assert reported.wait(60)
        (line,) = HOST.failing
        assert line.endswith("PermissionError: not for *** at all")


def test_one_whose_server_is_down_as_the_run_begins_gets_every_figure_later(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(tracking, "AGAIN_SECONDS", 0.01)
    with tracked(tmp_path, {"kind": here("down_at_first")}) as feeds:
        metrics = MetricsFiles(tmp_path, 0, feeds)
        metrics.step({"step": 1, **STEP})
        assert Down.tried.wait(60)
        Down.over.set()
        metrics.step({"step": 2, **STEP})
    (tracker,) = Told.made
    assert [step for step, _ in tracker.lines] == [1, 2]
    assert tracker.end
    assert HOST.failing == [], "it has them all in the end"
    (message,) = told_by_tracking(caplog)
    assert "cannot be begun, and is tried again every 0.01 s: ConnectionError: nobody listens" in message


def test_one_that_hangs_holds_nobody_up(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tracking, "WAITING", 2)
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.2)
    Hangs.begun.clear()
    Hangs.released.clear()
    try:
        with tracked(tmp_path, {"kind": here("Hangs")}) as feeds:
            metrics = MetricsFiles(tmp_path, 0, feeds)
            metrics.step({"step": 1, **STEP})
            assert Hangs.begun.wait(60), "it has the first line, and keeps it"
            for step in range(2, 11):
                metrics.step({"step": step, **STEP})
    finally:
        Hangs.released.set()
    text = " ".join(record.getMessage() for record in caplog.records)
    assert "did not close within 0.2 s, 2 lines behind" in text
    assert "lines were not sent" in text
    (line,) = HOST.failing
    assert "Hangs failed; did not close within 0.2 s, 2 lines behind; " in line


def test_what_is_not_there_is_said_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tracking, "TRACKER_PACKAGES", {**tracking.TRACKER_PACKAGES, "mlflow": "no_such_package"}
    )
    with pytest.raises(InvalidJob) as raised:
        run(tmp_path, {"kind": "mlflow"}, {"kind": "tensorboard"}, {"kind": "no.such:Tracker"})
    first, second = map(str, raised.value.problems)
    assert first.startswith("spec.trackers[0].kind: mlflow is not installed where the trainer runs")
    assert second.startswith(
        "spec.trackers[2].kind: 'no.such:Tracker' cannot be imported: ModuleNotFoundError"
    )


def test_weights_and_biases_without_a_key_is_said_before_anything_starts(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InvalidJob, match=r"spec.trackers\[0\].kind: Weights & Biases has no key here: set WANDB_API_KEY"
    ):
        run(tmp_path, {"kind": "wandb"})
    assert has_key({"mode": "offline"})
    for name, value in (("WANDB_MODE", "disabled"), ("WANDB_API_KEY", "k")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert has_key({})
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password p\n")
    assert has_key({})
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert not has_key({})


def test_tensorboard_shows_steps_that_are_trained_again_once(tmp_path):
    run(tmp_path, {"kind": "tensorboard"}, steps=4)
    run(tmp_path, {"kind": "tensorboard"}, first=2, steps=5)
    files = sorted((tmp_path / "tensorboard").iterdir(), key=lambda file: file.suffix)
    before, after = (list(events(file)) for file in files)
    rewards = [
        [(e.step, v.simple_value) for e in event_list for v in e.summary.value if v.tag == "reward_mean"]
        for event_list in (before, after)
    ]
    assert rewards == [[(step, 0.5) for step in (1, 2, 3, 4)], [(step, 0.5) for step in (3, 4, 5)]]
    purge = [e.step for e in after if e.session_log.status == e.session_log.START]
    assert purge == [3], "TensorBoard leaves out what was told before of steps from there on"
    texts = {v.tag: v.tensor.string_val for e in after for v in e.summary.value if v.tensor.string_val}
    ((name, (text,)),) = texts.items()
    assert b"\n    response: **2**\n    <script>\n    score: 0.5" in text, (
        "as code, in which nothing is markup"
    )
    assert {v.tag for e in after for v in e.summary.value} == {*STEP, "evaluation/sums/mean", name} - {"loss"}


def test_tensorboards_files_go_where_the_settings_say(tmp_path):
    run(tmp_path, {"kind": "tensorboard", "settings": {"logdir": str(tmp_path / "shared")}})
    (file,) = (tmp_path / "shared").iterdir()
    assert [e.step for e in events(file) for v in e.summary.value if v.tag == "reward_mean"] == [1, 2, 3]
    assert not (tmp_path / "tensorboard").exists()


def test_tensorboard_shows_once_what_a_run_from_the_start_trains_again(tmp_path):
    """The first run was killed before it had a checkpoint."""
    run(tmp_path, {"kind": "tensorboard"}, steps=2)
    (before,) = (tmp_path / "tensorboard").iterdir()
    before.rename(before.with_name(f"before.{before.name}"))  # both may have been made within a second
    run(tmp_path, {"kind": "tensorboard"}, steps=3)
    (after,) = (file for file in (tmp_path / "tensorboard").iterdir() if not file.name.startswith("before"))
    starts = [e for e in events(after) if e.session_log.status == e.session_log.START]
    assert [event.step for event in starts] == [0], "TensorBoard leaves out all that was told before"


def events(file: Path) -> Any:
    """TFRecords: a length, its checksum, the data, its checksum."""
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def in_trackio(file: Path) -> int:
    """Its lines in its own file; without its module, which the tracker's thread imports meanwhile."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as there,
    ):
        (count,) = there.execute("select count(*) from metrics").fetchone()
        return int(count)
    return 0


def die_once_told(point: str) -> None:
    """SIGKILL as step 3 begins, once MLflow and trackio have the two evaluations and the two steps before."""
    folder = Path(os.environ["TRACKIO_DIR"]).parent
    if point != "step:2" or (folder / "died").exists():
        return
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = folder.glob("mlflow/*/*/metrics/evaluation/held_out/loss")
        lines = [len(file.read_text().splitlines()) for file in files]
        if (lines, in_trackio(folder / "trackio" / "chats.db")) == ([2], 4):
            break
        time.sleep(0.05)
    (folder / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def test_mlflow_and_trackio_are_told_each_step_once_by_a_trainer_that_was_killed(tmp_path, monkeypatch):
    """Without a checkpoint it trains from the first step again, as the same run there. What is read back is what a
    trainer leaves, which ends by os._exit."""
    from mlflow import MlflowClient

    tiny_model(tmp_path / "model", tie=False, seed=0)
    rows = [json.dumps({"prompt": f"Say {i}", "answer": "No."}) + "\n" for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    store = (tmp_path / "mlflow").as_uri()
    kinds = [{"kind": "mlflow", "settings": {"tracking_uri": store}}, {"kind": "trackio"}]
    spec = {
        "algorithm": "sft",
        "steps": 4,
        "model": {"dtype": "float32", "policy": str(tmp_path / "model")},
        "data": {
            "train": [str(tmp_path / "rows.jsonl")],
            "promptsPerStep": 4,
            "maxPromptLength": 64,
            "maxResponseLength": 64,
        },
        "evaluation": {"data": [str(tmp_path / "rows.jsonl")], "everySteps": 2},
        "trackers": [{**kind, "project": "chats"} for kind in kinds],
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "told"}}
    (tmp_path / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    fault = here("die_once_told")
    files = {"TRACKIO_DIR": str(tmp_path / "trackio"), "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = succeed(tmp_path / "job.yaml", tmp_path / "run", RLHF_FAULTS=fault, **files)
    assert done.status["roles"]["trainer"]["restarts"] == 1

    figures = {"loss": [1, 2, 3, 4], "evaluation/held_out/loss": [0, 2, 4]}
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(store)
    (there,) = client.search_runs([client.get_experiment_by_name("chats").experiment_id])
    history = {name: client.get_metric_history(there.info.run_id, name) for name in figures}
    assert {name: [point.step for point in points] for name, points in history.items()} == figures
    assert [point.value for point in history["loss"]] == [step["loss"] for step in done.steps]
    assert (there.info.run_name, there.info.status) == ("told", "FINISHED")
    assert there.data.params["algorithm"] == "sft"

    name_there = f"told-{(done.workdir / tracking.ID).read_text()[:8]}"
    for name, steps in figures.items():
        which = ["--project=chats", f"--run={name_there}", f"--metric={name}", "--json"]
        ask = [sys.executable, "-m", "trackio.cli", "get", "metric", *which]
        query = subprocess.run(ask, env=os.environ | files, capture_output=True, check=True)
        assert [point["step"] for point in json.loads(query.stdout)["values"]] == steps

    # Back to step 2 by a health rule: the undone steps stay in the run before, and those that hold are in another.
    monkeypatch.setenv("TRACKIO_DIR", files["TRACKIO_DIR"])
    run(done.workdir, *spec["trackers"], first=2, steps=4, rollbacks=1)
    back, before = client.search_runs([there.info.experiment_id], order_by=["attributes.start_time DESC"])
    history = client.get_metric_history(back.info.run_id, "reward_mean")
    assert (back.info.run_name, [point.step for point in history]) == ("job-rollback-1", [3, 4])
    (shown,) = client.list_artifacts(back.info.run_id, "samples")
    assert shown.path == "samples/step-000003.md"
    assert before.info.run_id == there.info.run_id
    assert "reward_mean" not in before.data.metrics


def test_weights_and_biases_writes_what_its_sync_sends(tmp_path, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    # A busy machine takes a minute to import and start this client, all of which is in the time of the end here.
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 300.0)
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "300")
    wandb = {"kind": "wandb", "project": "chats", "settings": {"tags": ["a"]}}
    run(tmp_path, wandb)
    run(tmp_path, wandb, first=2, steps=4, rollbacks=1)
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    records, after = ([Record.FromString(data) for data in logged(file)] for file in files)
    lines = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(line["_step"], line["reward_mean"]) for line in lines] == [(step, 0.5) for step in (1, 2, 3)]
    assert lines[-1]["evaluation/sums/mean"] == 0.75
    table = next(files[0].parent.glob("files/media/table/samples_*.table.json"))
    (cells,) = json.loads(table.read_text())["data"]
    assert cells[:3] == [SAMPLE.prompt, SAMPLE.response, SAMPLE.score]
    (made,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert (made.project, made.display_name, list(made.tags)) == ("chats", "job", ["a"])
    assert made.run_id == (tmp_path / tracking.ID).read_text()
    (back,) = [r.run for r in after if r.WhichOneof("record_type") == "run"]
    assert (back.run_id, back.display_name) == (f"{made.run_id}-rollback-1", "job-rollback-1")
    rewards = [i.key or i.nested_key[0] for r in after for i in r.history.item].count("reward_mean")
    assert rewards == 2, "of steps 3 and 4, which were trained again on other data"


def test_weights_and_biases_is_begun_by_a_later_try_with_the_same_id(tmp_path, monkeypatch):
    from wandb.errors import CommError

    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "300")
    quiet = {"console": "off", "silent": True, "init_timeout": 1}
    again = Run("the-same", "job", "chats", tmp_path, 0, {})
    with pytest.raises(CommError):
        WandB(again, settings=quiet)
    tracker = WandB(again, settings=quiet, mode="offline")
    tracker.log({"loss": 1.0}, 1)
    tracker.close(ok=True)
    assert list(tmp_path.glob("wandb/offline-run-*/run-the-same.wandb"))


def logged(file: Path) -> Any:
    """LevelDB's log format behind 7 bytes: a checksum, a length, a kind (1 whole, 2 first, 3 middle, 4 last), in blocks
    of 32 KiB."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""

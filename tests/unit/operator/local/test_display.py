"""The user's view of a run: plain lines, and the live display on a terminal."""

import contextlib
import datetime
import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import yaml
from rich.console import Console
from tests.support.rlhf import heed_signals
from tests.unit.api.manifests import document

from rlhf_api.contract.status import JobStatus
from rlhf_operator.local.display.figures import step_line, time_left
from rlhf_operator.local.display.metrics import Evaluations, Metrics, evaluation_changes
from rlhf_operator.local.display.progress import Lines
from rlhf_operator.local.display.screen import panel

STEP = {
    "step": 3, "reward_mean": 0.51234, "kl_mean": 0.0123, "weight_version": 3, "tokens": 2100, "seconds": 4.2,
    "generate_seconds": 1.8, "score_seconds": 0.0, "train_seconds": 2.3, "broadcast_seconds": 0.1,
}  # fmt: skip


def test_step_lines() -> None:
    assert step_line(STEP, 40) == (
        "step 3/40  reward 0.5123  KL 0.0123  500 tokens/s  4.2 s (generate 1.8, train 2.3, broadcast 0.1)  weights v3"
    )
    assert step_line({"step": 1, "loss": 2.5, "seconds": 0.04}, 2) == "step 1/2  loss 2.5  0.0 s"
    assert step_line({}, 2) == "step ?/2"


def test_lines_tell_what_the_trainer_does_until_its_first_step() -> None:
    out = io.StringIO()
    lines = Lines(out, 40)
    for activity in (
        "starting",
        "starting: loading the policy model",
        "starting: loading the policy model",
        None,
    ):
        lines.show(JobStatus(phase="Provisioning", totalSteps=40, activity=activity))
    lines.step(STEP)
    lines.show(JobStatus(phase="Running", totalSteps=40, activity="generating"))
    shown = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert shown == ["trainer: loading the policy model", step_line(STEP, 40)]


class Clock:
    """A monotonic clock that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def follow(
    statuses: list[tuple[float, dict]], steps: dict[float, dict] | None = None
) -> list[tuple[float, str]]:
    """Lines of a run off a terminal, with their times: its status is shown twice a second, each of `statuses` from its
    time on to the last one's, and the `steps` are told at theirs."""
    out, clock = io.StringIO(), Clock()
    lines, timed_lines = Lines(out, 40, clock), list[tuple[float, str]]()
    for (_begins, fields), (ends, _) in itertools.pairwise(statuses):
        status = JobStatus.model_validate({"totalSteps": 40, "phase": "Running", **fields})
        while clock.now < ends:
            if steps and clock.now in steps:
                lines.step(steps[clock.now])
            lines.show(status)
            timed_lines += [
                (clock.now, line.split(" ", 1)[1]) for line in out.getvalue().splitlines()[len(timed_lines) :]
            ]
            clock.now += 0.5
    return timed_lines


def test_a_run_off_a_terminal_says_every_30_seconds_what_it_waits_for() -> None:
    timed_lines = follow(
        [
            (0, {"phase": "Provisioning", "message": "waiting for trainer 0/1, generator 0/1"}),
            (70, {"activity": "starting: loading the policy model", "message": "waiting for generator 0/1"}),
            (110, {"activity": "generating", "queue": 12}),
            (150, {"activity": "generating", "queue": 3}),
            (190, {"activity": "scoring", "queue": 0, "unscored": 4}),
            (250, {}),
        ]
    )
    assert timed_lines == [
        (30, "still waiting for trainer 0/1, generator 0/1, 30s"),
        (60, "still waiting for trainer 0/1, generator 0/1, 1m 00s"),
        (70, "trainer: loading the policy model"),
        (100, "still loading the policy model, 30s; waiting for generator 0/1"),
        (110, "trainer: generating"),
        (140, "still generating, 30s; 12 prompts without responses"),
        (170, "still generating, 1m 00s; 3 prompts without responses"),
        (190, "trainer: scoring"),
        (220, "still scoring, 30s; 4 responses without a score"),
    ]


def test_a_slow_reward_is_named_once_a_step_has_measured_the_rewards() -> None:
    step = {
        **STEP,
        "reward_positive_seconds": 40.25,
        "reward_length_seconds": 0.5,
        "reward_length_mean": 99.0,
    }
    scoring = {"activity": "scoring", "step": 3, "unscored": 4}
    timed_lines = follow([(0, {"activity": "generating", "step": 2}), (10, scoring), (61, {})], {5.0: step})
    assert timed_lines[2:] == [
        (35, "still scoring, 25s; 4 responses without a score; slowest reward of step 3: positive 40.2 s")
    ]


def test_a_run_that_prints_steps_has_no_other_lines() -> None:
    steps = {float(at): {**STEP, "step": at} for at in range(0, 100, 20)}
    timed_lines = follow([(0, {"activity": "training"}), (100, {})], steps)
    assert [line.split("  ")[0] for _, line in timed_lines] == [f"step {at}/40" for at in range(0, 100, 20)]


def test_time_left() -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def left(seconds: int) -> str | None:
        end = (now + datetime.timedelta(seconds=seconds)).isoformat()
        return time_left(JobStatus(phase="Running", totalSteps=1, estimatedEnd=end), now)

    assert [left(s) for s in (-5, 59, 61, 7322)] == ["0s", "59s", "1m 01s", "2h 02m"]


def test_metrics_are_followed_through_a_rollback(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    metrics = Metrics(file)
    with file.open("a") as out:
        out.write('{"step": 2}\nno json\n[1]\n{"st')
    assert metrics.new() == [{"step": 2}]
    with file.open("a") as out:
        out.write('ep": 3}\n')
    assert metrics.new() == [{"step": 3}]
    file.write_text('{"step": 1}\n')  # as a resumed trainer does
    assert metrics.new() == []
    with file.open("a") as out:
        out.write('{"step": 2}\n')
    assert metrics.new() == [{"step": 2}]
    file.unlink()
    assert metrics.new() == []


def test_a_loss_that_is_not_finite_is_shown(tmp_path: Path) -> None:
    """It is null in the file."""
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)
    file.write_text('{"step": 1, "loss": null}\n')
    (step,) = metrics.new()
    assert step_line(step, 4) == "step 1/4  loss nan"


def test_evaluations_are_lines_with_the_first_figure_of_their_set(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.jsonl"
    evaluations = Evaluations(file)
    assert evaluations.new_lines() == []
    with file.open("a") as out:
        out.write('{"step": 0, "set": "greedy", "mean": 0.53, "count": 100}\n')
        out.write(
            '{"step": 0, "set": "held_out", "loss": 2.0, "count": 8}\n{"step": 10, "set": "greedy", "mean": 0.97}'
        )
        out.flush()
        assert evaluations.new_lines() == [
            "evaluation after step 0: greedy  score 0.53  100 rows",
            "evaluation after step 0: held_out  loss 2  8 rows",
        ]
        out.write("\n")
    assert evaluations.new_lines() == ["evaluation after step 10: greedy  score 0.97 (0.53 at first)"]


def test_metrics_with_names_stand_beside_each_other(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.jsonl"
    evaluations = Evaluations(file)
    lines = [
        {"step": step, "set": "s", "mean": a, "count": 8, "a_mean": a, "a_count": 8, "b_mean": b}
        for step, a, b in ((0, 0.25, None), (5, 0.5, 2.0), (9, 0.75, 1.0))
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert evaluations.new_lines()[1:] == [
        "evaluation after step 5: s  a 0.5 (0.25 at first)  b 2 (nan at first)  8 rows",
        "evaluation after step 9: s  a 0.75 (0.25 at first)  b 1 (nan at first)  8 rows",
    ]
    assert evaluation_changes(file) == ["evaluation from step 0 to 9: s  a 0.25 -> 0.75"]


def test_the_panel_shows_a_run_at_a_glance() -> None:
    status = JobStatus.model_validate_json(
        json.dumps(
            {
                "phase": "Running", "activity": "generating", "step": 3, "totalSteps": 40, "reward": 0.5, "kl": 0.01,
                "tokensPerSecond": 1234.5, "weightVersion": 3,
                "roles": {"generator": {"desired": 2, "ready": 1, "restarts": 1}},
                "conditions": [{
                    "type": "Stalled", "status": "True", "reason": "NoProgress", "lastTransitionTime": "",
                    "message": "no progress, " * 10 + "started again at 2026-11-25T03:48:00Z",
                }],
            }
        )
    )  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=100).print(
        panel("demo", status, STEP, ["12:00:00 generator-1 was ended [by] SIGKILL"])
    )
    for words in (
        "demo  Running  generating", "step 3/40", "reward 0.5  KL 0.01  tokens/s 1,234  weights 3",
        "last step 500 tokens/s  4.2 s (generate 1.8", "generator 1/2 (1 restarts)", "ended [by] SIGKILL",
        "2026-11-25T03:48:00Z",
    ):  # fmt: skip
        assert words in out.getvalue()


def test_the_panel_counts_what_an_activity_waits_for_once_it_takes_long() -> None:
    status = JobStatus(phase="Running", totalSteps=40, activity="scoring", unscored=4)
    for seconds, is_shown in ((5.0, False), (75.0, True)):
        out = io.StringIO()
        Console(file=out, width=100).print(panel("demo", status, STEP, [], seconds))
        assert ("scoring, 1m 15s; 4 responses without a score" in out.getvalue()) is is_shown


def test_the_end_of_a_run_compares_the_last_evaluation_with_the_first(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.jsonl"
    sample = {"prompt": [{"role": "user", "content": "How was it?\n"}], "answer": " poor\n", "score": 0.0}
    lines: list[dict] = [
        {"step": 0, "set": "greedy", "mean": 0.25, "samples": [sample]},
        {"step": 0, "set": "pairs", "loss": 0.7},
        {"step": 0, "set": "once", "mean": 0.5},
        {"step": 0, "set": "failed", "mean": None},
        {"step": 10, "set": "greedy", "mean": 0.5, "samples": []},
        {"step": 20, "set": "greedy", "mean": 0.75, "samples": [{**sample, "answer": "x" * 300}]},
        {"step": 20, "set": "pairs", "loss": 0.125},
        {"step": 20, "set": "failed", "mean": 0.5, "samples": "damaged"},
    ]
    assert evaluation_changes(file) == []
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert evaluation_changes(file) == [
        "evaluation from step 0 to 20: greedy  score 0.25 -> 0.75",
        "  How was it?",
        "  before: poor",
        f"  after:  {'x' * 200}...",
        "evaluation from step 0 to 20: pairs  loss 0.7 -> 0.125",
    ]


def test_a_narrow_terminal_cuts_neither_figures_nor_the_newest_events_reason() -> None:
    status = JobStatus(
        phase="Running",
        totalSteps=200,
        step=63,
        reward=8.75,
        loss=0.125,
        tokensPerSecond=334,
        weightVersion=63,
    )
    reason = "12:00:01 trainer-0 exited with code 1: StoreError: the store file:///a fails: No space left on device"
    out = io.StringIO()
    Console(file=out, width=60).print(panel("demo", status, STEP, ["12:00:00 " + "x" * 80, reason]))
    for words in ("reward 8.75", "loss 0.125", "tokens/s 334", "weights 63", "x…"):
        assert words in out.getvalue()
    assert reason in " ".join(line.strip("│ ") for line in out.getvalue().splitlines())


def test_the_live_display_on_a_real_terminal(tmp_path: Path) -> None:
    """In a pseudo-terminal; Ctrl-C is typed, as a user does."""
    shown = interrupted(tmp_path, "xterm")
    # The terminal writes ^C where the key comes, which may be within a character.
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    last = text[text.rindex("╭") :]
    assert "job  Suspended  stopped on request" in last
    assert "step 2/4" in last
    assert last.splitlines()[-1].startswith("stopped on request; go on with `rlhf run")
    assert shown.endswith(b"\n")
    assert b"\x1b[?25h" in shown  # the cursor is back


def test_a_terminal_that_cannot_be_written_over_gets_lines(tmp_path: Path) -> None:
    shown = interrupted(tmp_path, "dumb")
    assert b"trainer-0 is ready" in shown
    assert b"\x1b" not in shown


def test_a_terminal_that_is_closed_stops_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    with launched(tmp_path, TERM="xterm") as (launcher, terminal):
        read_until(terminal, b"checkpoint of step 2")
        os.close(terminal)
        assert launcher.wait(240) == 130
    status = json.loads((tmp_path / "runs" / "job" / "status.json").read_text())
    assert (status["phase"], status["message"]) == ("Suspended", "stopped on request")


def interrupted(folder: Path, term: str) -> bytes:
    """All that a run shows on a terminal of this kind, with Ctrl-C typed after a checkpoint."""
    with launched(folder, TERM=term) as (launcher, terminal):
        shown = read_until(terminal, b"checkpoint of step 2")
        os.write(terminal, b"\x03")
        shown += read_until(terminal)
        assert launcher.wait(240) == 130
    return shown


@contextlib.contextmanager
def launched(folder: Path, **environ: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A run that waits at step 2, and our end of its terminal."""
    (folder / "p.jsonl").write_text('{"prompt": "hi"}\n')
    made = document("spec.data.train[0]=p.jsonl", "spec.reward.functions=[]")
    (folder / "job.yaml").write_text(yaml.safe_dump(made))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    launcher = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("launch.py")), "run", "job.yaml"],
        cwd=folder,
        env={**os.environ, "FAKE_TRAINER": "hold", **environ},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_at_the_terminal,
    )
    os.close(theirs)
    try:
        yield launcher, ours
    finally:
        with contextlib.suppress(OSError):
            os.close(ours)
        launcher.kill()  # if a test failed; its processes end with it
        launcher.wait()


def read_until(terminal: int, words: bytes | None = None) -> bytes:
    """Reads the terminal until it shows `words`, or until its other end is closed; returns its output."""
    shown = b""
    while words is None or words not in shown:
        assert select.select([terminal], [], [], 60)[0], shown[-4000:].decode()
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            assert words is None, shown[-4000:].decode()
            break
    return shown


def _at_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    heed_signals()

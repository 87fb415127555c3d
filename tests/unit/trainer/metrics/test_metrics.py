"""The figures of a run on disk: what a resumed run keeps, and the picture."""

import json
from math import inf, isnan, nan
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from tests.support import strict
from tests.support.sources import metrics_page
from tests.unit.api.manifests import job

from rlhf_api.contract.timeline import FILE, Span, StepTimeline
from rlhf_api.rules.health import metrics_of
from rlhf_trainer.metrics.files import MetricsFiles, read_lines
from rlhf_trainer.metrics.pictures import comparison_figure, draw_picture, reward_figure
from rlhf_trainer.metrics.tracking import Tracking

TRAINER = Path(__file__).parents[4] / "trainer_image" / "rlhf_trainer"
PPO = [{"step": i, "reward_mean": i / 4, "kl_mean": 0.01 * i, "loss": -0.1} for i in range(1, 6)]
SFT = [{"step": i, "loss": 3 / i} for i in range(1, 6)]


def nowhere(folder) -> Tracking:
    return Tracking("job", job("spec.trackers=[]").spec, folder)


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def earlier(tmp_path):
    """The work directory of a run that reached step 5 and was evaluated at 0, 2 and 4."""
    metrics = MetricsFiles(tmp_path, 0, nowhere(tmp_path))
    for row in PPO:
        metrics.step(row)
    for step in (0, 2, 4):
        metrics.evaluation({"step": step, "set": "held_out", "mean": 0.5, "count": 10, "samples": []})
    return tmp_path


def test_every_figure_of_the_page_is_one_of_the_trainers():
    sources = "".join(file.read_text() for file in TRAINER.rglob("*.py"))
    unwritten = {name for name in metrics_page.documented() if "<" not in name and f'"{name}"' not in sources}
    assert not unwritten, (
        f"docs/reference/metrics.md has {sorted(unwritten)}, which no line of the trainer writes"
    )


AFTER = {"step", "episode", "weight_version", "seconds", "train_seconds", "broadcast_seconds"} | {
    *("memory_peak_gigabytes", "memory_retries", "broadcast_bytes", "generators_paused_seconds"),
    *("trainer_idle_share", "generator_idle_share"),
}
"""Figures that are measured once a step's health has been judged."""


TAUGHT = "spec.distillation={minibatchSize: 8, teachers: [{name: sums, model: org/sums}]}"


def test_health_rules_may_name_every_figure_of_the_page_that_is_there_by_then():
    jobs = [
        job(),
        job("spec.data.train=[one.jsonl, two.jsonl]"),
        job("spec.algorithm=sft", "spec.ppo={}"),
        job("spec.algorithm=dpo", "spec.ppo={}"),
        job("spec.environment.path=guess:Guess"),
        job("spec.algorithm=distillation", "spec.ppo={}", TAUGHT, "spec.sampling.responsesPerPrompt=2"),
    ]
    known = {name for each in jobs for name in metrics_of(each.spec) or ()}
    page = metrics_page.documented()
    assert {name for name in known if not any(p.fullmatch(name) for p in page.values())} == set()
    missing = {name for name, pattern in page.items() if not any(pattern.fullmatch(each) for each in known)}
    assert missing == AFTER


def test_a_resumed_run_drops_the_lines_it_will_write_again(earlier):
    metrics = MetricsFiles(earlier, 3, nowhere(earlier))
    assert lines(earlier / "metrics.jsonl") == PPO[:3]
    assert [line["step"] for line in lines(earlier / "evaluation.jsonl")] == [0, 2]
    metrics.step(PPO[3])
    assert lines(earlier / "metrics.jsonl") == PPO[:4]


def test_a_resumed_run_has_no_timeline_twice(tmp_path):
    def times(step: int) -> StepTimeline:
        return StepTimeline(
            step=step, time=0, seconds=1, spans=(Span("trainer", 0, "train_policy", 0, 1 / step),)
        )

    for first in (1, 3):  # the second start goes on from step 2
        files = MetricsFiles(tmp_path, first - 1, nowhere(tmp_path))
        for step in range(first, first + 4):
            files.times(times(step))
    written = [StepTimeline.model_validate_json(line) for line in (tmp_path / FILE).open()]
    assert written == [times(step) for step in range(1, 7)]


def test_a_run_from_the_start_drops_all_lines(earlier):
    """A run without a checkpoint starts again from step 0, whose evaluation is repeated."""
    MetricsFiles(earlier, 0, nowhere(earlier))
    assert lines(earlier / "metrics.jsonl") == lines(earlier / "evaluation.jsonl") == []


def test_a_line_cut_short_by_a_crash_is_left_out(earlier):
    with (earlier / "metrics.jsonl").open("a") as out:
        out.write('{"step": 6, "rew')
    metrics = MetricsFiles(earlier, 9, nowhere(earlier))
    metrics.step({"step": 6, "reward_mean": 1.0, "kl_mean": 0.0})
    assert [line["step"] for line in lines(earlier / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_figures_that_are_not_finite_are_null_and_are_read_as_nan(tmp_path):
    """Also those that an earlier version wrote as NaN, once the run is resumed."""
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "reward_mean": nan, "kl_mean": 0.0}) + "\n")
    metrics = MetricsFiles(tmp_path, 1, nowhere(tmp_path))
    metrics.step({"step": 2, "reward_mean": -inf, "kl_mean": nan})
    metrics.evaluation({"step": 2, "set": "held_out", "mean": nan, "count": 0, "samples": [{"score": nan}]})
    assert [strict.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 1, "reward_mean": None, "kl_mean": 0.0},
        {"step": 2, "reward_mean": None, "kl_mean": None},
    ]
    judged = strict.loads((tmp_path / "evaluation.jsonl").read_text())
    assert (judged["mean"], judged["samples"]) == (None, [{"score": None}])
    assert [isnan(row["reward_mean"]) for row in read_lines(file)] == [True, True]
    with file.open("a") as out:
        out.write('[1]\n7\n{"step": 3, "cut')
    assert len(read_lines(file)) == 2, "what is no line of figures is left out"
    draw_picture(tmp_path, "a run without a reward")
    assert (tmp_path / "reward.png").exists()


@pytest.mark.parametrize("rows", [PPO, SFT, PPO[:1], SFT[:1]])
def test_a_picture_is_drawn(tmp_path, rows):
    metrics = MetricsFiles(tmp_path, 0, nowhere(tmp_path))
    for row in rows:
        metrics.step(row)
    draw_picture(tmp_path, "a run")
    png = (tmp_path / "reward.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5000


def test_without_steps_there_is_no_picture(tmp_path):
    draw_picture(tmp_path, "nothing yet")
    assert not (tmp_path / "reward.png").exists()


def test_the_picture_shows_reward_kl_and_evaluation():
    figure = reward_figure(PPO, [{"step": 0, "mean": 0.4}, {"step": 4, "mean": 0.9}], "a run")
    left, right = figure.axes
    assert left.lines[0].get_ydata().tolist() == [row["reward_mean"] for row in PPO]
    assert [line.get_label() for line in right.lines] == ["KL (nats a token)", "evaluation"]
    sets = [{"step": step, "set": name, "mean": 0.4} for step in (0, 4) for name in ("greedy", "eight")]
    left, right = reward_figure(PPO, sets, "a run").axes
    assert [line.get_label() for line in right.lines[1:]] == ["evaluation: greedy", "evaluation: eight"]
    colours = {to_hex(line.get_color()) for line in (*left.lines, *right.lines)}
    assert len(colours) == 4, "of reward, KL and each set"
    (only,) = reward_figure([{"step": 1, "reward_mean": 0.5}], [], "neither KL nor evaluation").axes
    assert only.get_ylabel() == "reward"
    (only,) = reward_figure(SFT, [], "a run").axes
    assert only.get_ylabel() == "loss"
    (only,) = reward_figure([{"step": 1}, *SFT[1:]], [], "a step that trains nothing").axes
    assert isnan(only.lines[0].get_ydata()[0])
    (only,) = reward_figure(SFT, [{"step": 0, "set": "held_out", "loss": 2.0}], "a run").axes
    assert [line.get_label() for line in only.lines] == ["training", "evaluation"]


def test_runs_are_compared_in_panels_of_what_they_have(tmp_path):
    sets = [{"step": 0, "set": "easy", "mean": 0.4}, {"step": 4, "set": "easy", "mean": 0.9}]
    runs = {"ppo": (PPO, sets), "sft": (SFT, []), "begun": ([], [])}
    for name, (rows, judged) in runs.items():
        (tmp_path / name).mkdir()
        for file, written in (("metrics.jsonl", rows), ("evaluation.jsonl", judged)):
            (tmp_path / name / file).write_text("".join(json.dumps(row) + "\n" for row in written))
    figure = comparison_figure({name: tmp_path / name for name in runs})
    panels = {axes.get_ylabel(): axes for axes in figure.axes}
    assert [*panels] == ["reward", "loss", "evaluation: easy", "KL (nats a token)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*runs]
    assert list(panels["evaluation: easy"].lines[0].get_ydata()) == [0.4, 0.9]
    assert panels["loss"].lines[1].get_color() != panels["reward"].lines[1].get_color()
    with pytest.raises(ValueError, match="no run has the figures of a step"):
        comparison_figure({"begun": tmp_path / "begun"})

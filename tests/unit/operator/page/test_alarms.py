"""Alarms: liveness first, then what is suspicious, then where time goes, each with a rule that is one."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from tests.support.run_folders import append_lines, write_run
from tests.unit.api.manifests import job

from rlhf_api.rules.health import metrics_of
from rlhf_api.sections.health import HealthRule
from rlhf_operator.page.alarms import alarm_list as alarms
from rlhf_operator.page.alarms import suspicions
from rlhf_operator.page.alarms.text_signs import is_garbled, repeats
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog

CALM = {"seconds": 10.0, "reward_mean": 0.5, "entropy": 1.0, "finished_share": 1.0, "trainer_idle_share": 0.1}


def steps(count=40, **last):
    """Steps whose figures are calm ones in the first half, and the last ones then."""
    for step in range(1, count + 1):
        yield {
            "step": step,
            **CALM,
            **(last if step > count // 2 else dict.fromkeys(last.keys() - CALM.keys(), 0)),
        }


def alarms_of(folder: Path) -> list[dict]:
    catalog = Catalog([folder])
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/alarms", {})["alarms"]


def titles(folder: Path, **run) -> list[str]:
    return [alarm["title"] for alarm in alarms_of(write_run(folder, **run))]


def test_a_calm_run_has_no_alarm(tmp_path):
    assert titles(tmp_path, steps=steps()) == []


@pytest.mark.parametrize(
    ("last", "title"),
    [
        ({"entropy": 0.01}, "The entropy has collapsed: 1 nats, now 0.01"),
        ({"finished_share": 0.2}, "80% of responses are truncated"),
        ({"groups_without_spread_share": 1.0}, "100% of groups have no spread of scores"),
        ({"kl_mean": 3.0}, "The policy is 3 nats a token from its reference"),
        ({"ratio_outside_share": 0.5}, "Trainer and generators differ by over a tenth at 50% of tokens"),
        ({"responses_dropped_share": 0.5}, "50% of responses get no score"),
        ({"trainer_idle_share": 0.9}, "The trainer waits 90% of a step for responses"),
        ({"generator_idle_share": 0.9}, "Generators wait 90% of a step for the trainer"),
        ({"score_seconds": 9.0}, "Scoring takes 90% of a step"),
        ({"broadcast_seconds": 9.0}, "Publishing weights takes 90% of a step"),
        ({"memory_retries": 2}, "The GPU is too full: torch frees memory within steps"),
    ],
)
def test_a_figure_that_moves_is_an_alarm(tmp_path, last, title):
    assert titles(tmp_path, steps=steps(**last)) == [title]


def test_scores_without_spread_are_none_where_a_teacher_judges(tmp_path):
    last = {"groups_without_spread_share": 1.0}
    assert titles(tmp_path, steps=steps(**last), spec={"algorithm": "distillation"}) == []


def test_few_steps_and_values_beyond_floats_say_nothing(tmp_path):
    assert titles(tmp_path, steps=steps(9, entropy=0.0, finished_share=0.0)) == []
    assert titles(tmp_path, steps=steps(groups_without_spread_share=1e308)) == []


def test_a_length_that_grows_with_the_reward_is_one_and_without_it_is_none(tmp_path):
    longer = [{**line, "response_length_mean": 50.0 * line["step"]} for line in steps()]
    assert titles(tmp_path / "a", steps=longer) == []
    paid = [{**line, "reward_mean": line["step"] / 40} for line in longer]
    (title,) = titles(tmp_path / "b", steps=paid)
    assert title.startswith("Responses grow with the reward")


@pytest.mark.parametrize(
    ("held_out", "count"),
    [
        ([0.2, 0.8, 0.3], 1),
        ([0.5, 0.48, 0.47], 1),
        ([0.5, 0.5, 0.5], 1),
        ([0.2, 0.3, 0.8], 0),
        ([0.2, 0.8, 0.78], 0),
        ([0.8, 0.3], 0),
    ],
)
def test_a_held_out_score_that_falls_or_stays_while_the_reward_rises_is_one(tmp_path, held_out, count):
    judged = [{"step": step, "set": "easy", "mean": mean} for step, mean in enumerate(held_out)]
    assert len(titles(tmp_path / "up", steps=steps(reward_mean=2.0), evaluations=judged)) == count
    assert titles(tmp_path / "calm", steps=steps(), evaluations=judged) == []


def test_liveness_comes_first(tmp_path):
    stalled = [{"type": "Stalled", "status": "True", "reason": "x", "message": "m", "lastTransitionTime": ""}]
    folder = write_run(
        tmp_path,
        phase="Running",
        steps=steps(entropy=0.0),
        status={"conditions": stalled, "activity": "generating"},
    )
    os.utime(folder / "metrics.jsonl", (1, 1))
    shown = [(alarm["level"], alarm["title"][:12]) for alarm in alarms_of(folder)]
    assert shown == [("error", "The run stan"), ("error", "No step for "), ("warning", "The entropy ")]
    os.utime(folder / "status.json", (1, 1))
    assert alarms_of(folder)[0]["title"] == "The run has died"


def test_the_text_of_responses_is_read(tmp_path):
    folder = write_run(tmp_path)
    line = {"prompt_id": "0/1", "prompt": "p", "weight_version": 1, "prompt_length": 1, "response_length": 1}
    responses = ["so good " * 40, *["ok \ufffd\ufffd"] * 4, *["fine"] * 3]
    append_lines(folder / "samples.jsonl", [{**line, "step": 1, "response": text} for text in responses])
    broken = "50% of the newest responses hold broken characters"
    (alarm,) = alarms_of(folder)
    assert (alarm["title"], read_rule(alarm["rule"]).metric) == (broken, "kl_mean")
    append_lines(folder / "samples.jsonl", [{**line, "step": 2, "response": "so good " * 40}] * 8)
    assert [(each["title"], read_rule(each["rule"]).metric) for each in alarms_of(folder)] == [
        ("56% of the newest responses repeat themselves", "entropy"),
        ("25% of the newest responses hold broken characters", "kl_mean"),
    ]


def read_rule(text: str) -> HealthRule:
    return HealthRule.model_validate_json(json.dumps(yaml.safe_load(text)))


def test_signs_of_text():
    assert repeats("very good film " * 20)
    assert not repeats(" ".join(map(str, range(100))))
    assert not repeats("ha ha ha ha")
    assert not is_garbled("caf\u00e9 \ufffd")


RULES = [sign.rule for sign in suspicions._SIGNS]


@pytest.mark.parametrize("text", RULES)
def test_a_rule_of_an_alarm_is_one_of_the_manifest(text):
    rule = read_rule(text)
    assert rule.metric in metrics_of(job().spec)


def test_a_rule_that_the_job_has_is_not_offered(tmp_path):
    rules = {"health": {"rules": [{"metric": "entropy", "below": 0.1, "action": "warn"}]}}
    plain = write_run(tmp_path / "a", steps=steps(entropy=0.01))
    guarded = write_run(tmp_path / "b", steps=steps(entropy=0.01), spec=rules)
    assert [bool(alarm["rule"]) for folder in (plain, guarded) for alarm in alarms_of(folder)] == [
        True,
        False,
    ]


@pytest.mark.parametrize("module", [alarms, suspicions])
def test_fields_that_an_alarm_names_are_there(module):
    spec = job().spec.model_dump(by_alias=True)
    for section, field in re.findall(r"spec\.([a-zA-Z]+)\.([a-zA-Z]+)", Path(module.__file__).read_text()):
        assert field in spec[section], f"spec.{section}.{field}"

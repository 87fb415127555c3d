"""Alerts and dashboard: queries that Prometheus can run, on metrics that there are, that fire when they should."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.helm import CHART, render, the
from tests.unit.chart.running import KEY, RUNNING, samples

from rlhf_operator.cluster.telemetry import Telemetry

VALUES = {"metrics": {"alerts": {"enabled": True}, "dashboard": {"enabled": True}}}
JOB = 'namespace="team",rlhfjob="ppo"'
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))
promtool_wanted = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool: tools/promtool .venv/bin/promtool"
)


@pytest.fixture(scope="module")
def rules() -> dict[str, Any]:
    return the(render(VALUES), "PrometheusRule")["spec"]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(the(render(VALUES), "ConfigMap")["data"]["rlhf.json"])


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Queries of the dashboard's panels, with Grafana's variables filled in."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [query.replace("$namespace", ".*").replace("$job", ".*") for query in queries]


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Every name that Prometheus reads."""
    telemetry = Telemetry()
    telemetry.job(KEY, RUNNING)
    telemetry.api_call("get", "Pod", 200, 0.1)
    return {name for name, *_ in samples(telemetry, "")}


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rlhf|process)_\w+", expression))


def run_promtool(folder: Path, *arguments: str, **files: Any) -> None:
    for name, body in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(body))
    command = [str(PROMTOOL), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_is_asked_for_is_exported(rules, dashboard, exported):
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in alerts + expressions(dashboard):
        metrics = metrics_in(expression)
        assert metrics, expression
        assert metrics <= exported, expression


def test_the_docs_name_every_metric_and_every_alert(rules, exported):
    page = (CHART.parents[1] / "docs" / "guides" / "clusters" / "cluster.md").read_text()
    parts = re.compile(r"_(bucket|count|sum)$")
    ours = {parts.sub("", name) for name in exported if name.startswith("rlhf_")}
    assert set(re.findall(r"`(rlhf_[a-z_]+)`", page)) == ours
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(RLHF(?:Job|Operator)[A-Z]\w+)`", page)) == alerts


def test_the_dashboard_is_laid_out_without_overlap(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


@promtool_wanted
def test_prometheus_takes_every_query(rules, dashboard, tmp_path):
    recorded = [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions(dashboard))]
    panels = {"groups": [{"name": "dashboard", "rules": recorded}]}
    run_promtool(tmp_path, "check", "rules", "rules.yaml", "panels.yaml", rules=rules, panels=panels)


def series(name: str, values: str, labels: str = JOB) -> dict[str, str]:
    return {"series": f"{name}{{{labels}}}", "values": values}


def phase(name: str, values: str) -> dict[str, str]:
    return series("rlhf_job_phase", values, f'{JOB},phase="{name}"')


OPERATOR = 'namespace="rlhf-system"'
LEADS = series("rlhf_operator_leading", "1x400", OPERATOR)
ERRORS = f'{OPERATOR},outcome="error"'
CASES = {
    # name: series a minute apart, and whether the alert fires after so many minutes
    "RLHFOperatorDown": (
        [series("rlhf_operator_leading", "1x9 0x30", OPERATOR)],
        {9: False, 14: False, 20: True},
    ),
    "RLHFOperatorReconcileErrors": (
        [series("rlhf_operator_reconcile_seconds_count", "0x9 1+1x40", ERRORS)],
        {9: False, 20: False, 30: True},
    ),
    "RLHFJobFailed": ([phase("Running", "1x9 stale"), phase("Failed", "_x10 1x30")], {9: False, 12: True}),
    "RLHFJobStuckProvisioning": ([phase("Provisioning", "1x60")], {20: False, 31: True}),
    "RLHFJobFigureMissing": (
        [
            phase("Running", "1x90"),
            series("rlhf_job_reward", "1x9" + " NaN" * 80),
            series("rlhf_job_kl", "0.1x90"),
        ],
        {9: False, 30: False, 45: True},
    ),
    "RLHFJobGeneratorMissing": (
        [
            phase("Running", "1x60"),
            series("rlhf_job_generators_desired", "3x60"),
            series("rlhf_job_generators_ready", "3x9 2x20 3x30"),
        ],
        {9: False, 15: False, 25: True, 35: False},
    ),
    # Promtool's clock begins at 0: checkpoints of the minutes 0, 30 and 60; suspended at 100, resumed at 200.
    "RLHFJobNoCheckpoint": (
        [
            phase("Running", "1x99 _x99 1x200"),
            series("rlhf_job_last_checkpoint_timestamp_seconds", "0x29 1800x29 3600x340"),
        ],
        {90: False, 210: False, 300: False, 330: True},
    ),
    "RLHFJobStale": ([series("rlhf_job_staleness", "0x9 5x30")], {9: False, 15: False, 25: True}),
}


MORE = [
    (
        "RLHFJobStale",
        (
            [series("rlhf_job_staleness", "5x39"), series("rlhf_job_staleness_bound", f"{bound}x39")],
            {25: fires},
        ),
    )
    for bound, fires in ((8, False), (2, True))
]
"""A job whose own bound is higher than the chart's threshold, and one whose is lower."""


@promtool_wanted
def test_every_alert_fires_when_it_should_and_only_then(rules, tmp_path):
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert sorted(names) == sorted(CASES)
    tests = [
        {
            "interval": "1m",
            "input_series": given,
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
                for minute, fires in firing.items()
            ],
        }
        for name, (given, firing) in (*CASES.items(), *MORE)
    ]
    cases = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    run_promtool(tmp_path, "test", "rules", "cases.yaml", rules=rules, cases=cases)


@promtool_wanted
def test_a_change_of_leader_neither_raises_nor_resets_an_alert(rules, tmp_path):
    """The job's series come from another pod from then on."""
    one, two = (f'{JOB},phase="Provisioning",pod="{pod}"' for pod in ("one", "two"))
    given = [series("rlhf_job_phase", "1x19 stale", one), series("rlhf_job_phase", "_x19 1x30", two), LEADS]
    alerts = [{"alertname": "RLHFJobStuckProvisioning", "eval_time": "35m"}]
    rule = next(r for g in rules["groups"] for r in g["rules"] if r["alert"] == "RLHFJobStuckProvisioning")
    words = {
        key: text.replace("{{ $labels.namespace }}", "team").replace("{{ $labels.rlhfjob }}", "ppo")
        for key, text in rule["annotations"].items()
    }
    labels = {"severity": "warning", "namespace": "team", "rlhfjob": "ppo"}
    alerts[0]["exp_alerts"] = [{"exp_labels": labels, "exp_annotations": words}]
    tests = [{"interval": "1m", "input_series": given, "alert_rule_test": alerts}]
    cases = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    run_promtool(tmp_path, "test", "rules", "cases.yaml", rules=rules, cases=cases)


@promtool_wanted
def test_the_dashboard_shows_the_gpus_of_each_job_and_what_they_cost(dashboard, tmp_path):
    """One curve a job, also just after a change of leader: its series come from another pod from then on."""
    given, expected = [], []
    for title, metric, value in (
        ("GPUs", "rlhf_job_gpus", 12),
        ("GPU-hours", "rlhf_job_gpu_hours_total", 100.5),
        ("Cost", "rlhf_job_cost_total", 251.25),
    ):
        (query,) = expressions({"panels": [p for p in dashboard["panels"] if p["title"] == title]})
        given += [series(metric, f"{value}x19", f'{JOB},pod="one"')]
        given += [series(metric, f"_x19 {value}x19", f'{JOB},pod="two"')]
        sample = {"labels": f"{{{JOB}}}", "value": value}
        expected += [{"expr": query, "eval_time": "21m", "exp_samples": [sample]}]
    tests = [{"interval": "1m", "input_series": given, "promql_expr_test": expected}]
    cases = {"evaluation_interval": "1m", "tests": tests}
    run_promtool(tmp_path, "test", "rules", "cases.yaml", cases=cases)

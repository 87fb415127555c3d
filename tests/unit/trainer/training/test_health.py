"""`spec.health`: what breaks a rule, what it costs, and one run through every action."""

import json
import math
import signal
from types import SimpleNamespace

import pytest
import torch
from tests.support.rlhf import SENTIMENT, finish, run, start
from tests.unit.api.manifests import job, refusals
from tests.unit.trainer.training.running import Job

from rlhf_api.contract.report import HealthStatus
from rlhf_api.contract.run import EXIT_UNHEALTHY
from rlhf_api.manifest.load import load
from rlhf_api.sections.health import Health
from rlhf_store.archive import Archive
from rlhf_trainer.metrics.builtin_trackers import Run
from rlhf_trainer.process.role import RoleEnd
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.training.health import Verdict, good, judge, restored, saved
from rlhf_trainer.training.monitor import Monitor


def health(*rules: dict, **fields: object) -> Health:
    return Health.model_validate_json(json.dumps({"rules": rules, **fields}))


def follow(rules: Health, name: str, values: list[float | None]) -> list[Verdict]:
    """The verdicts on a metric, step by step; its window goes through a snapshot each time."""
    verdicts, watches = list[Verdict](), {}
    for step, value in enumerate(values, 1):
        figures = {"loss": 1.0} if value is None else {"loss": 1.0, name: value}
        verdicts.append(judge(rules, watches, figures, step, begun=True))
        watches = restored(saved(verdicts[-1].watches))
    return verdicts


def acted(verdicts: list[Verdict]) -> list[tuple[int, str]]:
    return [(step, v.breach.reason) for step, v in enumerate(verdicts, 1) if v.breach]


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ({"above": 1}, [0.5, 1, 1.5, 0.5], [(3, "MetricAbove")]),
        ({"above": 1}, [0, math.inf], [(2, "MetricAbove")]),
        ({"below": 1}, [1, 0.5, 2, 0], [(2, "MetricBelow"), (4, "MetricBelow")]),
        ({"below": -1, "above": 1}, [0, -2, 2], [(2, "MetricBelow"), (3, "MetricAbove")]),
        # in a row: a sound step between starts anew, a missing one or NaN does not
        ({"above": 1, "steps": 2}, [2, 0, 2, 2, 2], [(4, "MetricAbove"), (5, "MetricAbove")]),
        ({"above": 1, "steps": 2}, [2, None, math.nan, 2], [(4, "MetricAbove")]),
        # against mean 0 and deviation 1 of the last 4
        ({"deviationsBelow": 3, "window": 4}, [-1, 1, -1, 1, -2.9, 0], []),
        ({"deviationsBelow": 3, "window": 4}, [-1, 1, -1, 1, -3.1, 9], [(5, "MetricFell")]),
        ({"deviationsAbove": 3, "window": 4}, [-1, 1, -1, 1, 3.1, -9], [(5, "MetricRose")]),
        ({"deviationsAbove": 3, "window": 4}, [-1, 1, -1, 3.1], []),
        ({"deviationsAbove": 3, "window": 4}, [1, 1, 1, 1, 9], []),
        # values of a streak stay out of the mean, or nothing could stay away from it; then it becomes the new one
        ({"deviationsAbove": 3, "window": 4, "steps": 2}, [-1, 1, -1, 1, 9, 9], [(6, "MetricRose")]),
        (
            {"deviationsAbove": 3, "window": 4},
            [-1, 1, -1, 1, 99, 99, 99],
            [(5, "MetricRose")],
        ),
    ],
)
def test_what_breaks_a_rule(rule, values, expected):
    assert acted(follow(health({"metric": "kl", "action": "warn"} | rule), "kl", values)) == expected


def test_a_breach_is_told_with_its_field_and_figures():
    rules = health(
        {"metric": "a", "above": 9, "action": "fail"},
        {"metric": "kl", "above": 0.5, "action": "rollback", "steps": 2},
    )
    first = judge(rules, {}, {"a": 0, "kl": 0.6}, 6, begun=True)
    breach = judge(rules, first.watches, {"a": 0, "kl": 0.75}, 7, begun=True).breach
    assert breach is not None
    assert (breach.where, breach.action) == ("spec.health.rules[1]", "rollback")
    assert breach.message == "kl 0.75 is above 0.5 for 2 steps in step 7"


def test_of_several_breaches_the_most_severe_acts():
    rules = health(
        *({"metric": "kl", "above": 0, "action": a} for a in ("warn", "pause", "fail", "rollback"))
    )
    breach = judge(rules, {}, {"kl": 1}, 1, begun=True).breach
    assert breach is not None
    assert breach.action == "fail"


def test_steps_that_break_a_rule_are_nothing_to_go_back_to():
    rules = health(
        {"metric": "kl", "above": 1, "steps": 3, "action": "rollback"},
        {"metric": "kl", "above": 0, "action": "warn"},
    )
    verdicts = follow(rules, "kl", [0.5, 2, 2, 0.5])
    assert [good(rules, v.watches) for v in verdicts] == [True, False, False, True]


def test_a_rule_with_other_limits_begins_anew_and_one_with_another_action_does_not():
    rule = {"metric": "kl", "above": 1, "steps": 2, "action": "warn"}
    (before,) = follow(health(rule), "kl", [2])
    for change, acts in (({"action": "fail"}, True), ({"above": 1.5}, False)):
        verdict = judge(health(rule | change), before.watches, {"kl": 2}, 2, begun=True)
        assert (verdict.breach is not None) == acts


def test_a_metric_that_no_step_has_is_named_once_every_model_is_trained():
    rules = health({"metric": "kl_maen", "above": 1, "action": "warn"})
    figures = {"kl_mean": 0.1, "loss": 1.0}
    assert judge(rules, {}, figures, 1, begun=False).unknown == ()
    (problem,) = judge(rules, {}, figures, 2, begun=True).unknown
    assert str(problem) == (
        "spec.health.rules[0].metric: step 2 has no metric 'kl_maen'; did you mean \"kl_mean\"?"
    )


@pytest.mark.parametrize(
    "metric",
    ["token_mult_prob_error", "responses_dropped_share", "reward_judge_mean", "episodes_failed_share"],
)
def test_a_rule_that_is_new_in_a_resumed_run_waits_for_a_metric_that_single_steps_lack(metric):
    """All tokens may be of older weights, and responses that came with the checkpoint were scored before."""
    rules, others = (
        health({"metric": metric, "above": 1, "action": "fail"}),
        {"loss": 1.0, "reward_mean": 0.5},
    )
    verdict = judge(rules, {}, others, 57, begun=True)
    assert verdict.unknown == ()
    verdict = judge(rules, verdict.watches, others | {"responses_dropped": 0.0, metric: 2.0}, 58, begun=True)
    assert verdict.breach is not None
    assert verdict.breach.message == f"{metric} 2 is above 1 in step 58"


@pytest.mark.parametrize(
    ("metric", "first"),
    [
        ("grad_norm", {}),  # no prompt of online DPO had a pair
        ("token_mult_prob_error", {}),
        ("source_1_reward_mean", {"loss": 1.0, "source_0_reward_mean": 0.5}),
        ("teacher_maths_kl_mean", {"loss": 1.0, "teacher_code_kl_mean": 0.5}),
        ("groups_all_lowest_share", {"loss": 1.0, "groups_filtered": 2.0}),
    ],
)
def test_a_rule_waits_for_a_metric_that_the_first_step_lacks_by_its_data(metric, first):
    rules = health({"metric": metric, "above": 1, "action": "fail"})
    scored = {"reward_mean": 0.5, "responses_dropped": 0.0}
    verdict = judge(rules, {}, scored | first, 1, begun=True)
    assert verdict.unknown == ()
    assert judge(rules, verdict.watches, scored | {"loss": 1.0, metric: 2.0}, 2, begun=True).breach


@pytest.mark.parametrize(
    ("metric", "step"),
    [
        *(("token_mult_prob_error", 1), ("reward_juge_mean", 57), ("kl_maen", 57)),
        *(("source_1_reward_mean", 1), ("groups_all_lowest_share", 1)),
    ],
)
def test_a_metric_that_the_step_should_have_is_still_missed(metric, step):
    figures = {"loss": 1.0, "reward_mean": 0.5, "responses_dropped": 0.0}
    rules = health({"metric": metric, "above": 1, "action": "fail"})
    assert len(judge(rules, {}, figures, step, begun=True).unknown) == 1


def test_generators_that_serve_another_policy_fail_the_job():
    figures = {"loss": 1.0, "logprob_difference": 0.5}
    breach = judge(Health(), {}, figures, 7, begun=True).breach
    assert (breach.reason, breach.action, breach.where) == (
        *("OtherPolicy", "fail"),
        "spec.health.logprobDifference",
    )
    assert "same tokens differ by 0.5 in the mean in step 7, and 0.3 is the limit" in breach.message
    assert judge(Health(), {}, figures | {"logprob_difference": 0.2}, 7, begun=True).breach is None
    assert judge(Health(), {}, figures, 7, begun=True, compared=False).breach is None
    assert judge(health(logprobDifference=0), {}, figures, 7, begun=True).breach is None
    assert judge(Health(), {}, {"loss": 1.0}, 7, begun=True).breach is None


FAR = {
    "logprob_difference": 0.1,
    "logprob_outlier_share": 2 / 379,
    "logprob_outliers": 2.0,
    "logprob_difference_max": 19.1,
}
"""A real step of a float32 engine whose speculation named wrong log-probabilities: under the limit of the mean."""


def test_a_single_token_far_apart_fails_a_float32_job_whatever_the_mean():
    one = FAR | {"logprob_outliers": 1.0, "logprob_outlier_share": 1 / 379}
    for metrics in (FAR, one):
        breach = judge(Health(), {}, {"loss": 1.0, **metrics}, 7, begun=True, outliers=0).breach
        assert (breach.reason, breach.action, breach.where) == (
            *("OtherPolicy", "fail"),
            "spec.health.logprobOutliers",
        )
    assert (
        "more than 1 nat at 1 tokens in step 7, a share of 0.0026 of those compared (by 19.1 at most)"
        in breach.message
    )
    assert judge(Health(), {}, {"loss": 1.0, **FAR}, 7, begun=True, outliers=1).breach is None
    assert judge(Health(), {}, {"loss": 1.0, **FAR}, 7, begun=True, outliers=0, compared=False).breach is None


@pytest.mark.parametrize(
    ("tokens", "outliers", "fails"),
    [(379, 2, False), (379, 9, False), (379, 10, True), (30_000, 25, False), (30_000, 31, True)],
)
def test_in_16_bits_a_share_of_outliers_fails_the_job_unless_they_are_few(tokens, outliers, fails):
    metrics = FAR | {"logprob_outliers": float(outliers), "logprob_outlier_share": outliers / tokens}
    breach = judge(Health(), {}, {"loss": 1.0, **metrics}, 7, begun=True, outliers=1e-3).breach
    assert (breach is not None) == fails


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ((), 0),
        (("generator.dtype=bfloat16",), 1e-3),
        (("model.dtype=bfloat16",), 1e-3),
        (("model.dtype=float16", "generator.dtype=float32"), 1e-3),
        (("model.dtype=bfloat16", "health.logprobOutliers=0.02"), 0.02),
        (("health.logprobOutliers=1",), 1),
        (("model.dtype=bfloat16", "generator.engineArguments={quantization: fp8}"), 0.02),
    ],
)
def test_the_default_limit_of_outliers_is_that_of_the_coarser_engine(overrides, limit):
    assert load(SENTIMENT / "ppo.yaml", ["model.dtype=float32", *overrides]).spec.outlier_limit() == limit


def test_generators_that_find_other_weights_than_they_were_given_fail_the_job():
    change = "generator-1 (worker 0): model.norm.weight is no longer what was loaded as weight version 6"
    breach = judge(Health(), {}, {"loss": 1.0}, 7, begun=True, other_weights=change).breach
    assert (breach.reason, breach.action, breach.where) == ("OtherWeights", "fail", "spec.generator")
    assert (
        f"responses of step 7 may have been sampled by other weights than they name: {change}"
        in breach.message
    )


def test_the_run_ends_and_says_so_before_anything_of_that_step_is_saved():
    reports: list[HealthStatus] = []
    spec, alone = job().spec, Ranks(0, 1, torch.device("cpu"))
    ctx = SimpleNamespace(spec=spec, ranks=alone, report=lambda health: reports.append(health))
    monitor = Monitor(ctx, SimpleNamespace(rollbacks=lambda: 0), begins=0)
    monitor.check({"loss": 1.0}, 6, "")
    assert not reports
    with pytest.raises(
        RoleEnd, match=r"spec\.generator: responses of step 7 .*: generator-1 serves x"
    ) as ended:
        monitor.check({"loss": 1.0}, 7, "generator-1 serves x")
    assert ended.value.code == EXIT_UNHEALTHY
    assert [(health.step, health.reason, health.action) for health in reports] == [
        (7, "OtherWeights", "fail")
    ]


@pytest.mark.parametrize(
    ("sampling", "cut"),
    [
        ("{}", False),
        ("{topP: 0.9}", True),
        ("{minP: 0.1}", True),
        ("{topK: 20, minP: 0.1}", False),
        ("{minNewTokens: 2}", True),
        ("{topK: 300}", True),
        ("{topK: 20, topP: 0.9, minNewTokens: 2}", False),
    ],
)
def test_cut_distributions_are_compared_where_training_replays_them(sampling, cut):
    assert job(f"spec.sampling={sampling}").spec.sampling.cut == cut


@pytest.mark.parametrize("name", ["loss", "policy_loss", "critic_grad_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_or_gradient_that_is_not_finite_fails_the_job_unless_told_otherwise(name, value):
    figures = {"loss": 1.0, "policy_loss": -0.5, "critic_grad_norm": 3.0, "kl_mean": float("nan")}
    assert judge(Health(), {}, figures, 7, begun=True).breach is None, "a mean over nothing is no divergence"
    breach = judge(Health(), {}, figures | {name: value}, 7, begun=True).breach
    assert breach is not None
    assert (breach.reason, breach.action) == ("NotFinite", "fail")
    assert breach.message.startswith(f"training diverged in step 7: {name} {value};")
    breach = judge(health(notFinite="rollback"), {}, figures | {name: value}, 7, begun=True).breach
    assert breach is not None
    assert breach.action == "rollback"


@pytest.mark.parametrize(
    ("section", "where", "says"),
    [
        (
            "{rules: [{metric: kl_mean, action: warn}]}",
            "spec.health.rules[0]",
            "needs a limit: above, below, dev",
        ),
        ("{rules: [{metric: a, above: 1, window: 3, action: warn}]}", "spec.health.rules[0].window", "got 3"),
        ("{rules: [{metric: a, above: 1, below: 2, action: warn}]}", "spec.health.rules[0]", "swap them"),
        ("{rules: [{metric: a, above: .inf, action: warn}]}", "spec.health.rules[0].above", "finite"),
        ("{rules: [{metric: a, above: 1}]}", "spec.health.rules[0].action", "is required"),
        ("{notFinite: warn}", "spec.health.notFinite", "none of"),
        ("{maxRollbacks: 2}", "spec.health.maxRollbacks", "action rollback; remove it; got 2"),
    ],
)
def test_rules_that_make_no_sense_are_refused(section, where, says):
    assert says in refusals(f"spec.health={section}")[where]


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_another_data_order_is_part_of_a_snapshot(algorithm):
    whole = Job(algorithm).steps(0, 2).weights()
    job = Job(algorithm).steps(0, 1)
    job.task.reorder(1)
    snapshot = job.snapshot(1)
    reordered = job.steps(1, 2).weights()
    resumed = Job(algorithm).restore(snapshot)
    assert resumed.steps(1, 2).weights() == reordered != whole


SMALL = (
    *("spec.data.promptsPerStep=8", "spec.steps=12", "spec.optimizer.warmupSteps=0"),
    *("spec.checkpoint.everySteps=1", "spec.checkpoint.keepLast=1"),
)
FALLS = "{metric: loss, below: 5.5, steps: 2, action: rollback}"


class Named:
    """A tracker that writes the name of its run, and after which step it begins."""

    def __init__(self, run: Run) -> None:
        with (run.folder / "named.txt").open("a") as out:
            out.write(f"{run.name} {run.step}\n")

    def log(self, *_arguments: object) -> None: ...

    def close(self, *, ok: bool) -> None: ...


@pytest.mark.slow
def test_one_run_warns_goes_back_fails_pauses_and_diverges(tmp_path):
    workdir, manifest = tmp_path / "w", SENTIMENT / "sft.yaml"
    rules = f"spec.health={{maxRollbacks: 1, rules: [{FALLS}, {{metric: tokens, above: 0, action: warn}}]}}"
    done = run(manifest, workdir, *SMALL, rules, f"spec.trackers=[{{kind: '{__name__}:Named'}}]")
    # Every step warns; the loss falls in time, and does so again after the rollback.
    assert "MetricAbove, warn: spec.health.rules[1]: tokens " in done.output
    assert "trainer-0 exited with code 80: spec.health.rules[0]: loss" in done.output
    assert "trainer-0 started again" in done.output
    assert done.code == 1
    assert "went back 1 times already (spec.health.maxRollbacks 1)" in done.output
    status = done.status
    failed = {c["type"]: c for c in status["conditions"] if c["status"] == "True"}["Failed"]
    assert failed["reason"] == "HealthRule"
    (unhealthy,) = (c for c in status["conditions"] if c["type"] == "Healthy")
    assert (unhealthy["status"], unhealthy["reason"]) == ("False", "MetricBelow")
    assert status["health"]["rollbacks"] == 1
    assert status["roles"]["trainer"]["restarts"] == 0, "a rollback is none of the role's failures"
    bad = [line["step"] for line in done.steps if line["loss"] < 5.5]
    assert bad == [len(done.steps)], "of the two steps that broke it the first was recorded"
    assert status["health"]["step"] == bad[0] + 1, "the second was neither recorded nor saved"

    named = (workdir / "named.txt").read_text().splitlines()
    assert named[0] == "sft 0"
    assert named[1].startswith("sft-rollback-1 "), "trackers cannot take back the step that was undone"

    # Retention kept the good checkpoint before it, though only the newest is to stay.
    entries = Archive((workdir / "checkpoints").as_uri()).entries()
    assert [(e.step, e.good) for e in entries] == [(bad[0] - 1, True), (bad[0], False)]

    paused = start(
        manifest,
        workdir,
        *SMALL,
        f"spec.health={{rules: [{FALLS.replace('rollback', 'pause')}]}}",
        flags=("--resume",),
    )
    lines = []
    assert paused.stdout is not None
    for line in paused.stdout:
        lines.append(line)
        if "pause: spec.health.rules[0]" in line:
            paused.send_signal(signal.SIGINT)
            break
    stopped = finish(paused, workdir)
    assert stopped.code == 130, "".join(lines) + stopped.output
    assert stopped.status["phase"] == "Suspended"
    entries = Archive((workdir / "checkpoints").as_uri()).entries()
    assert [(e.step, e.good) for e in entries] == [(bad[0] - 1, True)], "it goes on from the last good one"

    diverged = run(manifest, workdir, *SMALL, "spec.optimizer.learningRate=1e30", flags=("--resume",))
    assert diverged.code == 1
    assert "exited with code 81: spec.health.notFinite: training diverged in step" in diverged.output
    assert "started again" not in diverged.output, "it would end the same"
    assert all(math.isfinite(line["loss"]) for line in diverged.steps)

"""`spec.environment`: its rules, the lengths that follow from it, and where the scores of episodes come from."""

import json
import sys

import pytest
from tests.unit.api.manifests import job, refusals
from tests.unit.trainer.graph.specs import ONLINE

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import Batch
from rlhf_api.estimate.host_memory import StepMemory
from rlhf_api.field_types import READY_MADE
from rlhf_api.graph import ENVIRONMENT_REWARD, Score
from rlhf_api.roles import Role
from rlhf_api.rules.idle import list_idle_fields
from rlhf_operator.commands.plan_table import plan_lines
from rlhf_operator.local.preflight.files import check_files
from rlhf_operator.local.records.provenance import named_code
from rlhf_trainer.process.settings import longest

PLAYS = "spec.environment={path: 'guess.py:Guess', maxTokens: 1000}"
ALONE = (PLAYS, "spec.model.reward=null", "spec.reward={}")
REFUSED = [
    (("spec.environment.maxTokens=255",), "spec.environment.maxTokens", "use at least that; got 255"),
    (
        ("spec.environment.seconds=59",),
        "spec.environment.seconds",
        "60 s (turnSeconds); use at least that; got 59",
    ),
    (
        ("spec.environment.program=[a]",),
        "spec.environment",
        "needs exactly one of path (a class) and program",
    ),
    (("spec.environment={turns: 2}",), "spec.environment", "(a command); got none"),
    (
        ("spec.environment={program: [a], maxTokens: 1000, settings: {a: 1}}",),
        *(
            "spec.environment.settings",
            "keyword arguments of a class; give a program its settings as arguments",
        ),
    ),
    (
        ("spec.environment={program: [a], maxTokens: 1000, python: b}",),
        *("spec.environment.python", "name a program's interpreter as the first word of program"),
    ),
    (
        ("spec.reward.functions=[{name: environment, function: 'a:b'}]",),
        *("spec.reward.functions[0].name", "two rewards are 'environment' in the metrics"),
    ),
    (("spec.environment.parallel=1",), "spec.environment.workers", "only 1 episodes are played at once"),
    (
        ("spec.environment={path: openenv, settings: {url: 'http://a'}}",),
        *("spec.environment.network", "is reached over the network; use true; got false"),
    ),
    (("spec.reward.fineGrained=true",), "spec.reward.fineGrained", "are of turns already"),
    (
        ("spec.evaluation={data: [a], function: 'a:b'}", "spec.model.reward=null", "spec.reward={}"),
        *("spec.evaluation.function", "the environment's rewards judge held-out episodes; remove it"),
    ),
    (
        (
            *("spec.evaluation={data: [a], metrics: [{name: f, url: 'http://h'}]}", "spec.model.reward=null"),
            "spec.reward={}",
        ),
        *("spec.evaluation.metrics", "the environment's rewards judge held-out episodes; remove it; got 1"),
    ),
    (("spec.ppo.overlongBuffer=9",), "spec.ppo.overlongBuffer", "in the environment itself; use 0; got 9"),
    (
        ("spec.algorithm=a:B", "spec.ppo={}", "spec.custom={scores: false}"),
        *("spec.custom.scores", "the environment's rewards are scores; use true; got false"),
    ),
    (("spec.algorithm=sft", "spec.ppo={}"), "spec.environment", "applies only to sampled responses"),
    (
        ("spec.trainer.microBatchTokens=1511",),
        "spec.trainer.microBatchTokens",
        "1512 tokens (data.maxPromptLength +",
    ),
    (
        ("spec.generator.engineArguments={max-model-len: 1511}",),
        *(
            "spec.generator.engineArguments.max-model-len",
            "environment.maxTokens (1000) allow; use a number of at",
        ),
    ),
]


@pytest.mark.parametrize(("given", "where", "message"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_contradicts_episodes_is_refused(given, where, message):
    assert message in refusals(PLAYS, *given)[where]


def test_rewards_of_a_role_that_the_job_lacks_are_refused():
    with pytest.raises(InvalidJob, match=r"spec.reward.scale: .* the environment's rewards are the scores"):
        job(*ALONE, "spec.reward.scale=2.0")


def test_held_out_episodes_are_judged_by_the_environment_or_a_function_beside_other_rewards():
    held_out = "spec.evaluation={data: [a]}"
    assert job(*ALONE, held_out).spec.evaluation.function is None
    assert job(PLAYS, "spec.evaluation={data: [a], function: 'a:b'}").spec.evaluation.function == "a:b"
    with pytest.raises(InvalidJob, match=r"spec.evaluation.function: is required and missing"):
        job(held_out)


def test_how_many_episodes_may_fail_is_the_rewards_own_limit():
    assert job(*ALONE, "spec.reward.maxFailedShare=0.1").spec.reward.max_failed_share == 0.1


@pytest.mark.parametrize("algorithm", ONLINE)
def test_scores_are_the_environments_rewards_and_the_roles_where_both_are_given(algorithm):
    given = (f"spec.algorithm={algorithm}", "spec.ppo={}", "spec.sampling.responsesPerPrompt=8")
    given += ("spec.model.reference=org/teacher",) if algorithm == "distillation" else ()
    alone, both = job(*given, *ALONE).spec.graph, job(*given, PLAYS).spec.graph
    assert Role.REWARD not in alone.roles
    assert Role.REWARD in both.roles
    for graph, reads in ((alone, (ENVIRONMENT_REWARD,)), (both, (ENVIRONMENT_REWARD, "reward_scores"))):
        (scores,) = [node for node in graph.prepare if "scores" in node.writes]
        assert scores.reads == reads
        assert ENVIRONMENT_REWARD in graph.source.writes
    assert [node.writes for node in both.prepare if isinstance(node, Score)] == [("reward_scores",)]
    plain = job(*given).spec.graph
    assert ENVIRONMENT_REWARD not in plain.source.writes


def test_a_response_is_as_long_as_an_episode():
    plain, plays = job().spec, job(PLAYS).spec
    assert (longest(plain), longest(plays)) == (512 + 256, 512 + 1000)
    assert Batch.of(plays).tokens == 1512
    assert Batch.of(plays).longest == 1000
    before, after = StepMemory.of(plain), StepMemory.of(plays)
    assert after.tokens * 256 == before.tokens * 1000


def test_the_plan_says_where_environments_run():
    plan = plan_lines(job(*ALONE, "spec.trainer.pods.gpu={count: 1}", "spec.environment.workers=3").spec)
    assert any("the trainer's pod runs up to 3 processes of the environment too" in line for line in plan)


def test_turns_that_do_not_fit_are_told():
    assert list_idle_fields(job(*ALONE, "spec.environment.turns=3").spec) == []
    (line,) = list_idle_fields(job(*ALONE, "spec.environment.turns=4").spec)
    assert line == (
        "spec.environment.maxTokens 1000: 4 turns of up to 256 tokens (sampling.maxNewTokens) do not fit; long "
        "episodes end there"
    )


def test_a_ready_made_environment_is_named_by_one_word():
    spec = job(*ALONE, "spec.environment.path=textarena").spec
    assert spec.environment.path == READY_MADE["textarena"]
    assert [*named_code(spec)] == [], "its class is none of the user's"
    assert job(*ALONE, f"spec.environment.path={spec.environment.path}").spec == spec
    words = "must be harbor, openenv, reasoning-gym, textarena, verifiers, or name a Python class as"
    with pytest.raises(InvalidJob, match=words):
        job(*ALONE, "spec.environment.path=text-arena")


def test_a_class_of_another_interpreter_is_looked_for_only_in_the_jobs_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guess.py").write_text("def Guess(): ...\n")
    there = {"python": sys.executable, "maxTokens": 1000}
    own, other = ({**there, "path": f"{name}:Guess"} for name in ("guess", "of_its_packages"))
    says = [str(each) for each in check_files(job(*ALONE, f"spec.environment={json.dumps(own)}").spec)]
    assert any(
        each.startswith("spec.environment.path: is a function; an environment is a class") for each in says
    )
    says = [str(each) for each in check_files(job(*ALONE, f"spec.environment={json.dumps(other)}").spec)]
    assert not any("spec.environment" in each for each in says), "only that interpreter tells"
    nowhere = {**other, "python": "no/python"}
    says = [str(each) for each in check_files(job(*ALONE, f"spec.environment={json.dumps(nowhere)}").spec)]
    assert any(each.startswith("spec.environment.python: is not a program here") for each in says)

"""The CEL rules: each accepts and refuses what it should, and none refuses what the full checks accept."""

from itertools import product

import pytest
from hypothesis import given, settings
from pydantic.alias_generators import to_camel
from tests.unit.api.manifests import document, job, unchecked
from tests.unit.api.schema.cel_cases import ALLOWED, CASES, CHANGES, RUNNING, UPDATING, failed
from tests.unit.api.schema.rules import refusals
from tests.unit.api.schema.shapes import manifests

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.contract.status import CORRECTABLE
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.rules.check import CHANGEABLE, check_change
from rlhf_api.schema.cel import RULES
from rlhf_api.spec import Spec


@pytest.mark.parametrize(("good", "bad", "words"), CASES, ids=[case[1] for case in CASES])
def test_a_rule_accepts_and_refuses(good: str, bad: str, words: str) -> None:
    parse(document(good))
    assert refusals(document(good)["spec"]) == []
    assert any(words in message for message in refusals(document(bad)["spec"]))
    with pytest.raises(InvalidJob):
        parse(document(bad))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_rule_asks_an_algorithm_for_what_it_can_do_without(name: str) -> None:
    """A reference, a reward, several responses to a prompt: as few as the full checks accept."""
    section = f", {to_camel(name)}: {{minibatchSize: 8}}" if name in UPDATING else ""
    accepted = 0
    for models, responses in product(
        ("", ", reward: r", ", reference: t", ", reward: r, reference: t"), (1, 2)
    ):
        written = document(
            f"spec={{algorithm: {name}, steps: 1, model: {{policy: p{models}}}, "
            f"data: {{train: [x], promptsPerStep: 8}}, sampling: {{responsesPerPrompt: {responses}}}{section}}}"
        )
        try:
            parse(written)
        except InvalidJob:
            continue
        accepted += 1
        assert refusals(written["spec"]) == []
    assert accepted


def test_every_rule_has_a_case() -> None:
    rules = [rule.message for rules in RULES.values() for rule in rules if "oldSelf" not in rule.rule]
    assert [m for m in rules if not any(words in m for _, _, words in CASES)] == []


@pytest.mark.parametrize(("change", "where"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_running_job_cannot_change_and_a_suspended_one_can(change: str, where: str) -> None:
    for before, refused in ((document(), True), (document("spec.suspend=true"), False)):
        after = document(change)
        messages = refusals(after["spec"], before["spec"], {"phase": "Running"})
        assert [m.startswith(RUNNING) for m in messages] == [True] * refused
        suspended = () if refused else ("spec.suspend=true",)
        problems = check_change(unchecked(*suspended), unchecked(change))
        assert [p.where for p in problems] == [where] * refused


def test_a_job_that_failed_by_its_spec_can_be_corrected_and_no_other_that_failed() -> None:
    before, after = document()["spec"], document("spec.steps=5")["spec"]
    for reason in CORRECTABLE:
        assert refusals(after, before, failed(reason)) == []
    assert refusals(after, before, failed("BackoffLimitExceeded")) != []


def test_every_section_that_cannot_change_has_a_case() -> None:
    free = (*CHANGEABLE, "managed_by")
    sections = {f"spec.{f.alias or name}" for name, f in Spec.model_fields.items() if name not in free}
    assert sections == {where for _, where in CHANGES}


@pytest.mark.parametrize("suspended", [(), ("spec.suspend=true",)], ids=["running", "suspended"])
def test_the_manager_of_a_job_never_changes(suspended: tuple[str, ...]) -> None:
    managed = document(*suspended, "spec.managedBy=kueue.x-k8s.io/multikueue")
    other = document(*suspended, "spec.managedBy=rlhf.dev/operator")
    for before, after in ((document(*suspended), managed), (managed, other), (managed, document(*suspended))):
        (message,) = refusals(after["spec"], before["spec"])
        assert message == "managedBy never changes; delete the job and make it anew"
        problems = check_change(parse(before).spec, parse(after).spec)
        assert [p.where for p in problems] == ["spec.managedBy"]


@pytest.mark.parametrize("change", ALLOWED)
def test_what_a_running_job_may_change(change: str) -> None:
    before, after = document(), document(change)
    assert refusals(after["spec"], before["spec"]) == []
    assert check_change(parse(before).spec, parse(after).spec) == []


def test_a_change_beside_suspending_is_refused() -> None:
    after = document("spec.suspend=true", "spec.steps=5")
    assert [m.startswith(RUNNING) for m in refusals(after["spec"], document()["spec"])] == [True]
    assert [p.where for p in check_change(job().spec, parse(after).spec)] == ["spec.steps"]


@settings(max_examples=60)
@given(manifests())
def test_what_a_rule_refuses_the_full_checks_refuse(manifest) -> None:
    refused = refusals(manifest["spec"], manifest["spec"])
    try:
        parse(manifest)
    except InvalidJob:
        return
    assert refused == []


@settings(max_examples=30)
@given(manifests(), manifests())
def test_what_changes_in_a_running_job_no_rule_lets_pass(before, after) -> None:
    try:
        old, new = parse(before).spec, parse(after).spec
    except InvalidJob:
        return
    if check_change(old, new):
        assert refusals(after["spec"], before["spec"])

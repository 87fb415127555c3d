"""Every CEL rule on a current API server: it refuses in its words, and nothing that the full checks accept."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from tests.api_server.current.jobs import Jobs
from tests.api_server.current.server import Refused
from tests.unit.api.manifests import document
from tests.unit.api.schema.cel_cases import CASES
from tests.unit.api.schema.shapes import manifests

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import from_cluster, load, parse
from rlhf_api.schema.cel import RULES

DRY = "dryRun=All"
EXAMPLES = [
    file
    for file in sorted((Path(__file__).parents[3] / "examples").glob("**/*.yaml"))
    if "runtimes" not in file.parts
]
MESSAGES = [rule.message for rules in RULES.values() for rule in rules if "oldSelf" not in rule.rule]


@pytest.mark.parametrize(("good", "bad", "words"), CASES, ids=[case[1] for case in CASES])
def test_a_rule_refuses_in_its_words(jobs: Jobs, good: str, bad: str, words: str) -> None:
    jobs.create(document(good), DRY)
    with pytest.raises(Refused) as caught:
        jobs.create(document(bad), DRY)
    assert caught.value.code == 422
    (message,) = {message for message in MESSAGES if words in message}
    assert message in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(jobs: Jobs) -> None:
    with pytest.raises(Refused) as caught:
        jobs.create(document("spec.sampling.minNewTokens=257", "spec.pods.tolerations=[{value: v}]"), DRY)
    assert "spec.sampling.minNewTokens must not exceed" in str(caught.value)
    assert "spec.pods.tolerations[0]: Invalid value" in str(caught.value)


def test_examples_are_stored_and_read_back(jobs: Jobs) -> None:
    for file in EXAMPLES:
        ours = load(file)
        body = ours.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if "scenarios" in file.parts:  # which are one job
            body["metadata"]["name"] = file.stem
        stored = jobs.create(body, "fieldValidation=Strict").body
        assert from_cluster(stored).spec == ours.spec


def test_what_we_accept_the_server_takes_and_hands_back(jobs: Jobs) -> None:
    accepted: list[tuple[Any, RLHFJob]] = []

    @settings(max_examples=250, phases=[Phase.generate])
    @given(manifests())
    def draw(manifest: Any) -> None:
        try:
            accepted.append((copy.deepcopy(manifest), parse(manifest)))
        except InvalidJob:
            return

    draw()
    assert len(accepted) >= 60
    for manifest, job in accepted:
        assert from_cluster(jobs.create(manifest, DRY).body).spec == job.spec

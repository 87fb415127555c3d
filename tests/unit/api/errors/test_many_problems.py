"""A manifest of an API server's size has as many problems as its author likes: what is told of it stays small."""

import pytest
from tests.unit.api.manifests import document

from rlhf_api.errors import meanings
from rlhf_api.errors.problem import MOST, InvalidJob
from rlhf_api.manifest.load import from_cluster

WORDS = 200_000
"""More characters than all messages may have; without bounds these manifests made hundreds of millions."""


def refused(**spec: object) -> InvalidJob:
    body = document()
    body["spec"] |= spec
    with pytest.raises(InvalidJob) as caught:
        from_cluster(body)
    return caught.value


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"k" * 60_000: [{"name": [1]} for _ in range(1_000)]}},
        {"spec": {"k.k" * 20_000: {"$patch": "x", "list": [{"name": [1]} for _ in range(1_000)]}}},
        {"spec": {"tolerations": [{"name": [1]}] * 10_000}},
        {"metadata": {"labels": {f"rlhf.dev/{i}": "x" for i in range(10_000)}}},
    ],
    ids=["under a long key", "under a long quoted key", "of one list", "of one map"],
)
def test_problems_of_a_template_are_cut_in_number_and_length(template):
    error = refused(pods={"template": template})
    assert len(str(error)) < WORDS
    assert error.problems[-1].message == f"has more problems than these {MOST}"


def test_keys_that_no_server_pruned_are_not_all_compared_with_those_that_are_known(monkeypatch):
    """The webhook reads what anybody in the cluster sends it."""
    compared, closest = [], meanings.closest

    def counted(key, *rest):
        compared.append(key)
        return closest(key, *rest)

    monkeypatch.setattr(meanings, "closest", counted)
    refused(trainer={"deepspeed": {f"zero_optimizatio{i}": 1 for i in range(5_000)}})
    assert len(compared) <= 3 * MOST

"""A toleration of everything holds no pod for ever on a node that is gone."""

from typing import Any

import pytest

from rlhf_operator.cluster.act.pod_client import EVICTION_SECONDS, evictable

ALL = {"operator": "Exists"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}


def end(taint: str, seconds: int = EVICTION_SECONDS) -> dict[str, Any]:
    key = f"node.kubernetes.io/{taint}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


@pytest.mark.parametrize(
    ("tolerations", "made"),
    [
        ([ALL], [end("not-ready"), end("unreachable"), ALL]),
        (
            [ALL | {"effect": "NoExecute"}],
            [end("not-ready"), end("unreachable"), ALL | {"effect": "NoExecute"}],
        ),
        ([ALL, GPU], [GPU, end("not-ready"), end("unreachable"), ALL]),
        ([ALL, end("unreachable", 20)], [end("unreachable", 20), end("not-ready"), ALL]),
    ],
    ids=["everything", "every eviction", "everything and more", "everything, with an end that is its own"],
)
def test_what_tolerates_everything_gets_an_end_before_it_where_kubernetes_looks_first(tolerations, made):
    assert evictable({"spec": {"tolerations": tolerations}}) == {"spec": {"tolerations": made}}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"tolerations": [GPU]},
        {"tolerations": [ALL | {"effect": "NoSchedule"}]},
        {"tolerations": [ALL | {"effect": "NoExecute", "tolerationSeconds": 60}]},
        {"tolerations": "of a template that the API server refuses"},
    ],
    ids=["none", "one taint", "no eviction", "an end", "nonsense"],
)
def test_other_tolerations_are_left_to_kubernetes(spec):
    assert evictable({"spec": spec}) == {"spec": spec}

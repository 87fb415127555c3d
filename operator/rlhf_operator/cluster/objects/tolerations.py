"""Orders a pod's tolerations so that one of everything does not hold the pod for ever on a node that is gone; pure.

Kubernetes marks such a node with a `NoExecute` taint and asks the first toleration that matches for how long the pod
stays. Without a match it adds one of 300 s of its own, but a toleration of everything matches, and has no end.
"""

from typing import Any

from ...job.baseline import as_list, as_object

Body = dict[str, Any]

GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node whose kubelet reports trouble, and of one whose kubelet does not report."""
EVICTION_SECONDS = 300
"""Kubernetes' own default (`--default-unreachable-toleration-seconds` of the API server), seconds."""


def evictable(pod: Body) -> Body:
    """The pod, unless it tolerates everything without an end: then with an end for nodes that are gone, or with that
    of a toleration that names their taints."""
    tolerations = as_list(pod["spec"].get("tolerations"))
    of_all = [each for each in tolerations if not as_object(each).get("key")]
    first = next(filter(_executes, of_all), None)
    if first is None or as_object(first).get("tolerationSeconds") is not None:
        return pod
    named = [each for each in tolerations if each not in of_all]
    known = {each["key"] for each in filter(_executes, named)}
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_SECONDS}
        for key in GONE
        if key not in known
    ]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*named, *ours, *of_all]}}


def _executes(toleration: Any) -> bool:
    """True if it matches taints that evict."""
    return as_object(toleration).get("effect") in (None, "", "NoExecute")

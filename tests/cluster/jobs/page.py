"""The chart's page in a pod of its own, asked by a viewer's pod for what that one may see."""

import json
from typing import Any

from tests.cluster.jobs.visitors import REACHED, READY_S, REJECTED, tried, visit
from tests.support.installed import PAGE, READER, SYSTEM
from tests.support.kubernetes.kube import eventually, get, kubectl
from tests.support.kubernetes.operator import Jobs

_ASK = """
import json, sys, urllib.error, urllib.request
token = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
for path in json.loads(sys.argv[2]):
    request = urllib.request.Request(f"http://{sys.argv[1]}/api/v1{path}")
    if path != "/runs?":
        request.add_header("Authorization", f"Bearer {token}")
    try:
        print(urllib.request.urlopen(request, timeout=60).read().decode())
    except urllib.error.HTTPError as error:
        print(json.dumps({"code": error.code} | json.load(error)))
"""


def check_page(jobs: Jobs, job: str, steps: int) -> None:
    """A viewer sees the job, and its figures once it may get the Secret with the store's keys; a pod that the chart
    does not name reaches nothing."""
    (page,) = get(jobs.kubeconfig, "pods", "-n", SYSTEM, "-l", PAGE)["items"]
    ends, account = [(page["status"]["podIP"], 8080)], f"{jobs.namespace}:{READER}"
    jobs.kubectl("create", "serviceaccount", READER)
    for name, spec in ((READER, {"serviceAccountName": READER}), ("stranger", {})):
        visit(jobs.kubeconfig, jobs.namespace, name, **spec)
    # Its address is known a moment after its start.
    eventually(
        lambda: tried(jobs.kubeconfig, jobs.namespace, READER, ends) == [REACHED],
        "the page is reached",
        READY_S,
    )
    assert tried(jobs.kubeconfig, jobs.namespace, "stranger", ends) == [REJECTED]
    jobs.kubectl("create", "rolebinding", "reads", "--clusterrole=view", f"--serviceaccount={account}")
    unknown, listed = ask(jobs, "/runs?", f"/runs?namespaces={jobs.namespace}")
    assert unknown["code"] == 401
    (run,) = (each for each in listed["runs"] if each["name"] == job)
    assert (run["namespace"], run["phase"], run["step"]) == (jobs.namespace, "Succeeded", steps)
    path = f"/runs/{run['id']}"
    (details,) = ask(jobs, path)
    assert "seaweedfs" in details["hidden"], "the reason for which there are no figures"

    jobs.kubectl("create", "rolebinding", "edits", "--clusterrole=edit", f"--serviceaccount={account}")
    # What a viewer may do is asked anew after a moment.
    eventually(lambda: ask(jobs, path)[0]["hidden"] == "", "the viewer may see the figures", READY_S)
    details, figures, samples, timeline = ask(
        jobs,
        path,
        f"{path}/metrics?names=reward_mean",
        f"{path}/samples",
        f"{path}/timeline?step={steps - 1}",
    )
    assert [checkpoint["step"] for checkpoint in details["checkpoints"]][-1] == steps
    assert figures["steps"] == list(range(1, steps + 1))
    assert samples["count"] > 0
    assert timeline["recorded"]


def ask(jobs: Jobs, *paths: str) -> list[Any]:
    """Replies to GET requests of a pod with the viewer's account; `/runs?` without its token."""
    place = f"rlhf-operator-ui.{SYSTEM}:8080"
    inside = ("exec", READER, "-n", jobs.namespace, "--", "python3", "-c", _ASK, place, json.dumps(paths))
    return [json.loads(line) for line in kubectl(jobs.kubeconfig, *inside).splitlines()]

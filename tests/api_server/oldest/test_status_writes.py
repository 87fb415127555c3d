"""A status is written by whoever saw the job as it is, and by nobody else."""

import asyncio

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")


def test_the_late_write_of_a_deposed_leader_rolls_no_attempt_back(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(old: SteppedOperator, new: SteppedOperator) -> None:
        await old.api.create(job(namespace))
        await old.reconcile("ppo")
        await old.bind("ppo-trainer-0")
        await old.reconcile("ppo")
        # The next leader sees that the trainer is gone, and makes another.
        await new.api.delete("Pod", namespace, "ppo-trainer-0", grace=0)
        for _ in range(2):
            await new.reconcile("ppo")
        stored = (await new.api.get("RLHFJob", namespace, "ppo"))["status"]
        assert stored["cluster"]["attempt"] == 2
        trainer = await new.api.get("Pod", namespace, "ppo-trainer-0")
        old.cache.drop({**trainer, "metadata": {**trainer["metadata"], "uid": "seen-before"}})
        stale = old.cache.job((namespace, "ppo"))
        assert stale["status"]["cluster"]["attempt"] == 1
        stale["spec"]["steps"] = 39  # so that there is something to write
        stale["metadata"]["generation"] = 2
        monkeypatch.setattr(old.cache, "job", lambda _: stale)
        with pytest.raises(ApiError, match="409 Conflict"):
            await old.reconcile_cached("ppo")
        assert (await new.api.get("RLHFJob", namespace, "ppo"))["status"] == stored
        assert (await new.api.get("Pod", namespace, "ppo-trainer-0"))["metadata"]["uid"] == trainer[
            "metadata"
        ]["uid"]

    operators(body)


def test_a_checkpoint_request_of_any_length_fits_into_the_status(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every write of the status would fail, and with it the replacement of pods."""

    async def accepted(*_: object) -> bool:
        return True

    async def body(operator: SteppedOperator) -> None:
        made = job(namespace)
        made["metadata"]["annotations"] = {"rlhf.dev/checkpoint": "now " * 10_000}
        await operator.api.create(made)
        monkeypatch.setattr(operator.reconciler._trainers, "checkpoint", accepted)
        for _ in range(2):
            await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        assert status["cluster"]["checkpointRequested"].startswith("now now ")

    operators(body)


def test_an_autoscaler_does_not_undo_a_kubectl_scale_that_it_has_not_seen(
    operators: Operators, control_plane: Cluster, namespace: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        version = (await operator.api.create(job(namespace)))["metadata"]["resourceVersion"]
        where = ("rlhfjob/ppo", "-n", namespace, "--replicas=3")
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "scale", *where)
        with pytest.raises(ApiError, match="409 Conflict"):
            await operator.api.scale("RLHFJob", namespace, "ppo", 2, version)
        now = await operator.api.get("RLHFJob", namespace, "ppo")
        assert now["spec"]["generator"]["replicas"] == 3
        await operator.api.scale("RLHFJob", namespace, "ppo", 2, now["metadata"]["resourceVersion"])
        now = await operator.api.get("RLHFJob", namespace, "ppo")
        assert now["spec"]["generator"]["replicas"] == 2

    operators(body)

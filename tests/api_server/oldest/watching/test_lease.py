"""Of several operators one leads, on a real API server; times are half of the real ones."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.support.kubernetes.cluster import Cluster, ControlPlane

from rlhf_operator.kube import lease as module
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.lease import NAME, Lease, LeaseLost

LEASE, LEAD = 5.0, 4.0
Body = Callable[[Api], Awaitable[None]]


@pytest.fixture
def talk(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    for name, seconds in {
        "LEASE": LEASE,
        "_LEAD": LEAD,
        "_CALL": 2.0,
        "_RENEW": 1.0,
        "_POLL": 0.7,
        "_RETRY": 0.2,
    }.items():
        monkeypatch.setattr(module, f"{name}_SECONDS", seconds)

    def run(body: Body) -> None:
        async def main() -> None:
            async with asyncio.timeout(240), await Api.connect() as api:
                await body(api)

        asyncio.run(main())

    return run


def test_the_first_leads_and_the_next_takes_over_when_it_lets_go(talk, namespace):
    async def body(api: Api) -> None:
        first, second = Lease(api, namespace, "first"), Lease(api, namespace, "second")
        await first.acquire()
        assert first.is_held()
        waiting = asyncio.create_task(second.acquire())
        keeping = asyncio.create_task(first.keep())
        await asyncio.sleep(1.5 * LEASE)
        assert not waiting.done()
        assert first.is_held()
        assert second.is_read
        module.LEASE_SECONDS = 3600.0  # with its next renewal; then only what is let go can be taken in time
        while (await api.get("Lease", namespace, NAME))["spec"]["leaseDurationSeconds"] < 3600:
            await asyncio.sleep(0.1)
        keeping.cancel()
        await first.release()
        assert not first.is_held()
        await waiting
        spec = (await api.get("Lease", namespace, NAME))["spec"]
        assert spec["holderIdentity"] == second.identity
        assert second.identity.startswith("second_")
        assert spec["leaseTransitions"] == 1

    talk(body)


def test_the_lease_of_a_dead_leader_runs_out_not_earlier(talk, namespace):
    async def body(api: Api) -> None:
        dead, other = Lease(api, namespace, "dead"), Lease(api, namespace, "other")
        await dead.acquire()
        died = time.monotonic()
        await other.acquire()
        waited = time.monotonic() - died
        assert not dead.is_held()
        assert waited >= LEASE

    talk(body)


def test_of_many_one_gets_it(talk, namespace):
    async def body(api: Api) -> None:
        leases = [Lease(api, namespace, f"operator-{i}") for i in range(6)]
        tasks = [asyncio.create_task(lease.acquire()) for lease in leases]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert sum(lease.is_held() for lease in leases) == 1
        for task in tasks:
            task.cancel()

    talk(body)


def test_who_is_started_again_is_somebody_else(talk, namespace):
    """An earlier process with the same pod name may still be running."""

    async def body(api: Api) -> None:
        await Lease(api, namespace, "same-name").acquire()
        again = asyncio.create_task(Lease(api, namespace, "same-name").acquire())
        await asyncio.sleep(LEASE / 2)
        assert not again.done()
        await again

    talk(body)


def test_a_lease_that_somebody_took_is_lost_at_once(talk, namespace):
    async def body(api: Api) -> None:
        lease = Lease(api, namespace, "robbed")
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        stored = await api.get("Lease", namespace, NAME)
        while True:
            try:
                await api.replace({**stored, "spec": {**stored["spec"], "holderIdentity": "thief"}})
                break
            except module.ApiError:  # it was renewed in between
                stored = await api.get("Lease", namespace, NAME)
        with pytest.raises(LeaseLost, match="thief took the lease"):
            await keeping
        assert not lease.is_held()

    talk(body)


def test_a_lease_that_somebody_deleted_is_made_again(talk, namespace):
    async def body(api: Api) -> None:
        lease = Lease(api, namespace, "leader")
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        await api.delete("Lease", namespace, NAME)
        await asyncio.sleep(LEASE)
        assert not keeping.done()
        assert lease.is_held()
        assert (await api.get("Lease", namespace, NAME))["spec"]["holderIdentity"] == lease.identity
        keeping.cancel()

    talk(body)


def test_a_leader_that_gets_no_answer_gives_up_before_another_may_lead(
    talk, namespace, own_control_plane: ControlPlane
):
    async def body(api: Api) -> None:
        lease = Lease(api, namespace, "cut-off")
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        own_control_plane.signal_apiserver(signal.SIGSTOP)
        try:
            cut = time.monotonic()
            with pytest.raises(LeaseLost, match="could not renew"):
                await keeping
            assert time.monotonic() - cut < LEASE
            assert not lease.is_held()
            await lease.release()  # does not wait for an answer either
        finally:
            own_control_plane.signal_apiserver(signal.SIGCONT)

    talk(body)

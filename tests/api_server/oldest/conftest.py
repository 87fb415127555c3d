"""A control plane for all tests of the API, and a namespace for each."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.api_server.oldest.jobs import ADDRESS
from tests.api_server.oldest.schedulers import CLAIM_TEMPLATE, COSCHEDULING, KUEUE, VOLCANO
from tests.api_server.oldest.stepped_operator import Operators, stepped_operator
from tests.cluster.packages import Unavailable
from tests.support.kubernetes.cluster import Cluster, ControlPlane, control_plane, existing
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually, kubectl, new_namespace
from tests.support.kubernetes.operator import Jobs, Operator, TalkingTrainer, operator, talking_trainer

from rlhf_api.job import KIND
from rlhf_api.schema.crd import RUNTIMES, document
from rlhf_operator.supervision import budget


@pytest.fixture(scope="session", name="control_plane")
def _control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that KUBECONFIG names, or a control plane of these tests' own."""
    if cluster := existing():
        yield cluster
        return
    try:
        with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
            yield plane
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def own_control_plane(control_plane: Cluster) -> ControlPlane:
    """For tests that stop its servers."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip(
            "stops the API server: unset KUBECONFIG and RLHF_TEST_KUBECONFIG to run it on one of its own"
        )
    return control_plane


@pytest.fixture(scope="session")
def crd(control_plane: Cluster) -> Iterator[None]:
    """Our kinds are known to the server from now on: each definition is seconds of its processor. On a cluster of
    others, those that were not there before are deleted in the end."""
    kubeconfig = control_plane.kubeconfig
    names = {f"{kind.lower()}s.rlhf.dev": kind for kind in (KIND, *RUNTIMES)}
    before = kubectl(kubeconfig, "get", "crd", *names, "--ignore-not-found", "--output=name")
    missing = {name: kind for name, kind in names.items() if f"/{name}\n" not in before}
    minor = json.loads(kubectl(kubeconfig, "get", "--raw=/version"))["minor"].rstrip("+")
    for kind in missing.values():
        kubectl(kubeconfig, "create", "-f", "-", input=document(int(minor), kind))
    for kind in missing.values():
        path = f"/apis/rlhf.dev/v1alpha1/{kind.lower()}s"
        eventually(lambda path=path: kubectl(kubeconfig, "get", f"--raw={path}"), f"the server serves {kind}")
    yield
    if missing and not isinstance(control_plane, ControlPlane):
        kubectl(kubeconfig, "delete", "crd", *missing, "--ignore-not-found")


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """Empty, of this test alone."""
    with new_namespace(control_plane.kubeconfig) as name:
        yield name


@pytest.fixture
def jobs(control_plane: Cluster, namespace: str) -> Jobs:
    return Jobs(control_plane.kubeconfig, namespace)


@pytest.fixture(scope="module")
def nodes(control_plane: Cluster) -> Iterator[FakeNodes]:
    with FakeNodes(control_plane, address=ADDRESS) as made:
        yield made


@pytest.fixture(scope="module")
def talking(nodes: FakeNodes) -> Iterator[TalkingTrainer]:
    """The trainer of all jobs whose pods are on these nodes."""
    assert nodes
    with talking_trainer() as made:
        yield made


@pytest.fixture(scope="module")
def served(
    control_plane: Cluster, crd: None, nodes: FakeNodes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """One operator for all namespaces."""
    assert crd is None
    assert nodes
    with operator(control_plane.kubeconfig, tmp_path_factory.mktemp("operator"), deployed=True) as running:
        yield running


@pytest.fixture
def operators(control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Operators:
    """Each has a cache of its own, none pauses before a start, and they look when the test says so."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setattr(budget, "_FIRST", 0.0)

    def run(body: Callable[..., Awaitable[None]], **settings: Any) -> None:
        async def together() -> None:
            async with AsyncExitStack() as stack:
                these = [stepped_operator(namespace, **settings) for _ in inspect.signature(body).parameters]
                await body(*[await stack.enter_async_context(each) for each in these])

        asyncio.run(together())

    return run


@pytest.fixture
def kueue(control_plane: Cluster) -> Iterator[Callable[[], None]]:
    """The server knows Kueue's Workload, until this is called."""
    kubeconfig, name = control_plane.kubeconfig, KUEUE["metadata"]["name"]
    remove = lambda: kubectl(kubeconfig, "delete", "crd", name, "--ignore-not-found")  # noqa: E731
    kubectl(kubeconfig, "create", "-f", "-", input=json.dumps(KUEUE))
    kubectl(kubeconfig, "wait", f"crd/{name}", "--for=condition=Established")
    yield remove
    remove()


@pytest.fixture(scope="module")
def gangs(control_plane: Cluster) -> Iterator[None]:
    """The server knows the PodGroups of both schedulers, and the claims of newer servers."""
    kubeconfig, definitions = control_plane.kubeconfig, (COSCHEDULING, VOLCANO, CLAIM_TEMPLATE)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    for definition in definitions:
        kubectl(kubeconfig, "create", "-f", "-", input=json.dumps(definition))
    kubectl(kubeconfig, "wait", *names, "--for=condition=Established")
    yield
    kubectl(kubeconfig, "delete", *names, "--ignore-not-found")

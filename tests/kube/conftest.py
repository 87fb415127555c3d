"""A control plane for all tests of the API, and a namespace for each."""

import json
from collections.abc import Iterator

import pytest
from tests.cluster.packages import Unavailable
from tests.support.cluster import Cluster, ControlPlane, control_plane, existing
from tests.support.kube import eventually, kubectl, new_namespace

from rlhf_api.crd import document


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


@pytest.fixture(scope="module")
def crd(control_plane: Cluster) -> Iterator[None]:
    """RLHFJob is known to the server while a module's tests run; where it was before, it stays as it is."""
    kubeconfig, name = control_plane.kubeconfig, "rlhfjobs.rlhf.dev"
    if kubectl(kubeconfig, "get", "crd", name, "--ignore-not-found"):
        yield
        return
    minor = json.loads(kubectl(kubeconfig, "get", "--raw=/version"))["minor"].rstrip("+")
    kubectl(kubeconfig, "create", "-f", "-", input=document(int(minor)))
    eventually(
        lambda: kubectl(kubeconfig, "get", "--raw=/apis/rlhf.dev/v1alpha1/rlhfjobs"),
        "the server serves RLHFJob",
    )
    yield
    kubectl(kubeconfig, "delete", "crd", name)


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """Empty, of this test alone."""
    with new_namespace(control_plane.kubeconfig) as name:
        yield name

"""The control plane that the tests beside this one stand on."""

import signal
from contextlib import suppress

import pytest
from tests.support.kubernetes.cluster import Cluster, ControlPlane
from tests.support.kubernetes.kube import KubectlError, eventually, get, kubectl

OWNED = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  namespace: {namespace}
  ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]
"""


def test_what_an_owner_leaves_is_collected(control_plane: Cluster, namespace: str) -> None:
    admin = control_plane.kubeconfig
    kubectl(admin, "create", "configmap", "owner", "--namespace", namespace)
    uid = get(admin, "configmap", "owner", "--namespace", namespace)["metadata"]["uid"]
    kubectl(admin, "apply", "-f", "-", input=OWNED.format(namespace=namespace, uid=uid))
    kubectl(admin, "delete", "configmap", "owner", "--namespace", namespace)

    def is_deleted() -> bool:
        with suppress(KubectlError):
            kubectl(admin, "get", "configmap", "owned", "--namespace", namespace)
            return False
        return True

    eventually(is_deleted, "the owned object's deletion")


def test_the_api_server_stops_and_comes_back_with_what_it_held(
    own_control_plane: ControlPlane, namespace: str
) -> None:
    admin = own_control_plane.kubeconfig
    own_control_plane.stop_apiserver()
    with pytest.raises(KubectlError, match="refused"):
        kubectl(admin, "get", "namespace", namespace)
    own_control_plane.start_apiserver()
    assert get(admin, "namespace", namespace)["status"]["phase"] == "Active"


def test_a_frozen_api_server_answers_nobody(own_control_plane: ControlPlane) -> None:
    own_control_plane.signal_apiserver(signal.SIGSTOP)
    try:
        with pytest.raises(KubectlError, match="not done after 1 s"):
            kubectl(own_control_plane.kubeconfig, "get", "--raw=/readyz", timeout=1)
    finally:
        own_control_plane.signal_apiserver(signal.SIGCONT)
    own_control_plane.wait_ready()

"""The chart on a real API server: installed, used, upgraded, rolled back and removed by the real helm."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.helm import CHART, HelmError, helm
from tests.support.kubernetes.kube import KubectlError, eventually, get, kubectl

from rlhf_api.job import KIND
from rlhf_api.schema.crd import RUNTIMES

JOB = Path(__file__).parents[4] / "examples" / "sentiment" / "ppo.yaml"
CRDS = [f"{kind.lower()}s.rlhf.dev" for kind in (KIND, *RUNTIMES)]


class Release:
    """A release in a test's namespace, serving that alone."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig, self.namespace = kubeconfig, namespace
        self.name = f"{namespace}-rlhf-operator"

    def helm(self, verb: str, *arguments: str) -> str:
        return helm(
            verb, self.namespace, f"--namespace={self.namespace}", *arguments, kubeconfig=self.kubeconfig
        )

    def install(self, verb: str = "install", *arguments: str) -> str:
        # The definition may be there already, from another test or the cluster's own operator.
        common = (str(CHART), f"--set=watchNamespaces={{{self.namespace}}}", "--take-ownership")
        return self.helm(verb, *common, *arguments)

    def kubectl(self, *arguments: str) -> str:
        return kubectl(self.kubeconfig, f"--namespace={self.namespace}", *arguments)

    def data(self, secret: str) -> dict[str, str]:
        stored = get(self.kubeconfig, "secret", f"{self.name}-{secret}", f"--namespace={self.namespace}")
        return stored["data"]


@pytest.fixture(scope="module", autouse=True)
def _definition_as_before(control_plane: Cluster) -> Iterator[None]:
    """The chart leaves them behind; other tests bring their own."""
    before = kubectl(control_plane.kubeconfig, "get", "crd", *CRDS, "--ignore-not-found", "--output=name")
    yield
    if made := [name for name in CRDS if f"/{name}\n" not in before]:
        kubectl(control_plane.kubeconfig, "delete", "crd", *made, "--ignore-not-found")


@pytest.fixture
def release(control_plane: Cluster, namespace: str) -> Iterator[Release]:
    made = Release(control_plane.kubeconfig, namespace)
    yield made
    made.helm("uninstall", "--ignore-not-found")


def test_install_upgrade_rollback_uninstall_and_install_again(release, tmp_path):
    notes = release.install("install", "--set=webhook.enabled=true")
    assert f"deployment/{release.name}" in notes
    assert release.kubectl("get", "deployment", release.name, "--output=name")
    key, certificate = release.data("token-key"), release.data("webhook-certificate")
    the_api_server_can_verify_the_webhook(release, tmp_path)

    # Jobs can be declared; nobody asks the webhook where none answers.
    release.kubectl("apply", f"--filename={JOB}")
    uid = release.kubectl("get", "rlhfjob", "ppo", "--output=jsonpath={.metadata.uid}")

    release.install(
        "upgrade",
        "--set=webhook.enabled=true",
        "--set=replicaCount=3",
        "--set=metrics.dashboard.enabled=true",
    )
    replicas = release.kubectl("get", "deployment", release.name, "--output=jsonpath={.spec.replicas}")
    assert replicas == "3"
    assert (release.data("token-key"), release.data("webhook-certificate")) == (key, certificate)

    release.helm("rollback", "1")
    replicas = release.kubectl("get", "deployment", release.name, "--output=jsonpath={.spec.replicas}")
    assert replicas == "2"
    assert release.data("token-key") == key

    # The operator goes; jobs, and what their tokens are made from, stay.
    release.helm("uninstall")
    left = "deployments,services,configmaps,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases"
    mine = f"--selector=app.kubernetes.io/instance={release.namespace}"
    assert release.kubectl("get", left, mine, "--output=name") == ""
    wide = "clusterroles,clusterrolebindings,validatingwebhookconfigurations"
    assert release.kubectl("get", wide, mine, "--output=name") == ""
    assert kubectl(release.kubeconfig, "get", "crd", *CRDS, "--output=name")
    assert release.kubectl("get", "rlhfjob", "ppo", "--output=jsonpath={.metadata.uid}") == uid
    release.install()
    assert release.data("token-key") == key


def the_api_server_can_verify_the_webhook(release: Release, folder: Path) -> None:
    """A TLS handshake with what helm made."""
    files = release.data("webhook-certificate")
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(files[name]))
    (webhook,) = get(release.kubeconfig, "validatingwebhookconfiguration", release.name)["webhooks"]
    where = webhook["clientConfig"]["service"]
    assert where["path"] == "/validate"
    assert release.kubectl("get", "service", where["name"], "--output=name")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    authority = base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
    calling = ssl.create_default_context(cadata=authority)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    host = f"{where['name']}.{where['namespace']}.svc"
    client = calling.wrap_bio(back, there, server_hostname=host)
    server = serving.wrap_bio(there, back, server_side=True)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.getpeercert()["subjectAltName"] == (("DNS", host),)


def test_another_token_key_is_refused_not_taken(release):
    """With another key the operator could not talk to any running job."""
    release.install()
    with pytest.raises(HelmError, match="immutable"):
        release.install("upgrade", "--set=tokenKey.key=other")


def test_users_who_may_edit_or_view_a_namespace_may_do_so_with_its_jobs(release):
    release.install()
    for role in ("edit", "view"):
        release.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}or")

    def may(user: str, verb: str, subresource: str = "") -> bool:
        what = ("rlhfjobs.rlhf.dev", f"--subresource={subresource}", f"--as={user}")
        try:
            return release.kubectl("auth", "can-i", verb, *what).strip() == "yes"
        except KubectlError:  # "no" is a failure too
            return False

    eventually(lambda: may("editor", "create"), "the role `edit` with our rights added")
    eventually(lambda: may("viewor", "list"), "the role `view` with our rights added")
    assert may("editor", "watch")
    assert may("editor", "update", "scale")
    assert not may("editor", "update", "status")
    assert not may("viewor", "delete")
    assert not may("viewor", "update", "scale")


def test_an_unknown_value_installs_nothing(release):
    with pytest.raises(HelmError, match="'replica' not allowed"):
        release.install("install", "--set=replica=1")
    assert (
        release.kubectl("get", "deployments,secrets", "--output=name", "--selector=app.kubernetes.io/name")
        == ""
    )

"""/metrics of an operator with the chart's rights is for accounts that may get it, as the API server says."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.helm import CHART, helm
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.kubernetes.operator import Operator, operator
from tests.support.servers.proxy import proxied


def get(running: Operator, path: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{running.metrics_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:  # it is not here yet
        return 0, ""


@pytest.mark.usefixtures("crd")
def test_a_token_is_reviewed_by_the_api_server(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    admin, here = control_plane.kubeconfig, f"--namespace={namespace}"
    values = f"fullnameOverride={namespace},replicaCount=0,crds.install=false,metrics.access=authorized"
    own = f"--set=watchNamespaces={{{namespace}}}"
    helm("install", namespace, str(CHART), here, f"--set={values}", own, kubeconfig=admin)
    try:
        for name in ("prometheus", "somebody"):
            kubectl(admin, "create", "serviceaccount", name, here)
        reader = (f"--clusterrole={namespace}-metrics-reader", f"--serviceaccount={namespace}:prometheus")
        kubectl(admin, "create", "clusterrolebinding", f"{namespace}-scrapes", *reader)
        token = {
            name: kubectl(admin, "create", "token", name, here).strip()
            for name in (namespace, "prometheus", "somebody")
        }
        with proxied(control_plane, tmp_path) as (_, kubeconfig):
            document = yaml.safe_load(kubeconfig.read_text())
            document["users"][0]["user"]["token"] = token[namespace]
            kubeconfig.write_text(yaml.safe_dump(document))
            with operator(
                kubeconfig, tmp_path / "operator", namespace, RLHF_REVIEW_METRICS="true"
            ) as running:
                eventually(lambda: get(running, "/readyz") == (200, "ok, leads\n"), "it leads")
                assert "rlhf_operator_leading 1.0" in get(running, "/metrics", token["prometheus"])[1]
                code, text = get(running, "/metrics", token["somebody"])
                assert (code, f"{namespace}:somebody may not get /metrics" in text) == (403, True)
                assert get(running, "/metrics", "invented")[0] == 401
                assert get(running, "/metrics")[0] == 401
                assert get(running, "/healthz")[0] == 200
    finally:
        kubectl(admin, "delete", "clusterrolebinding", f"{namespace}-scrapes", "--ignore-not-found")
        helm("uninstall", namespace, here, kubeconfig=admin)

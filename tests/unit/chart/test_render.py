"""The chart as helm renders it: objects are valid and consistent, and hold the settings that the operator reads."""

import base64
import re
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.support.kubernetes.helm import CHART, HelmError, Loader, helm, render, the
from tests.unit.chart.shapes import SHAPES

from rlhf_api.manifest.load import parse
from rlhf_api.schema.crd import RUNTIMES, crd, definition
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Defaults, Settings
from rlhf_operator.cluster.objects.companions import companions
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.job.names import common_labels

SYSTEM = "rlhf-system"
OPERATOR = {"app.kubernetes.io/name": "rlhf-operator", "app.kubernetes.io/component": "operator"}
MONITORING = [{"namespaceSelector": {"matchLabels": {"monitoring": "yes"}}, "podSelector": {}}]
GIVEN = {"existingSecret": "certificate", "caBundle": "UEVN"}
EVERYTHING: dict[str, Any] = {
    "global": {"imageRegistry": "mirror.example/rlhf", "imagePullSecrets": ["everywhere"]},
    "replicaCount": 3,
    "logFormat": "text",
    "image": {"repository": "registry.example/rlhf-operator", "tag": "1@sha256:0f", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "limits": {"enabled": True, "hostPaths": ["/models"], "requireQueue": True},
    "jobs": {
        "trainerImage": "registry.example/t:2",
        "imagePullPolicy": "Never",
        "workspaceClaim": "shared",
        "defaultRequests": False,
        "tmpSizeLimit": "200Gi",
        "podSecurityContext": {
            "runAsUser": None,
            "runAsGroup": None,
            "fsGroup": None,
            "seccompProfile": None,
        },
        "metricsFrom": MONITORING,
        "gpuPrices": {"nvidia.com/gpu": 2.5, "nvidia.com/mig-1g.10gb": 0},
        "giveUpLostPods": False,
    },
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    },
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"example/one": "1"},
    "podLabels": {"sidecar.istio.io/inject": "false"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "networkPolicy": {
        "metricsFrom": MONITORING,
        "restrictEgress": True,
    },
    "metrics": {
        "port": 9000,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "annotations": {"folder": "RLHF"}},
    },
    "webhook": {"enabled": True, "port": 9999, "failurePolicy": "Fail", **GIVEN},
}
NAMESPACED: dict[str, Any] = {
    "watchNamespaces": ["training", "research"],
    "webhook": {"enabled": True, **GIVEN},
    "replicaCount": 1,
}
ISSUED: dict[str, Any] = {
    "tokenKey": {"existingSecret": "mine", "previousSecret": "former", "key": "k"},
    "webhook": {"enabled": True, "certManager": {"enabled": True}},
    "serviceAccount": {"create": False, "name": "given"},
    "fullnameOverride": "short",
    "crds": {"install": False},
}
ALL = {"default": {}, "everything": EVERYTHING, "namespaced": NAMESPACED, "issued": ISSUED}


@pytest.fixture(scope="module", params=ALL)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(ALL[request.param])


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return render(EVERYTHING)


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return the(objects, "Deployment")["spec"]["template"]["spec"]


def environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """The operator's, with what only a cluster knows made up."""
    (container,) = pod_of(objects)["containers"]
    return {entry["name"]: entry.get("value", "x" * 32) for entry in container["env"]}


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_lint_finds_nothing(values):
    helm("lint", "--strict", str(CHART), "--values=-", input=yaml.safe_dump(values))


def test_every_object_is_valid_on_kubernetes_1_37(objects):
    for body in objects:
        if shape := SHAPES.get((body["apiVersion"], body["kind"])):
            jsonschema.validate(body["spec"], shape)
        else:
            kubernetes_validate.validate(body, "1.37", strict=True)


def test_every_object_is_named_once_and_in_the_releases_namespace_unless_it_must_be_elsewhere(objects):
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    wide = {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert {kind for kind, namespace, _ in names if namespace is None} <= wide
    assert {kind for kind, namespace, _ in names if namespace not in (None, SYSTEM)} <= {
        "Role",
        "RoleBinding",
    }


DEFINITION = ("CustomResourceDefinition", "rlhfjobs.rlhf.dev")


@pytest.mark.parametrize("minor", [24, 30])
def test_the_runtimes_definitions_are_the_generated_ones(minor):
    rendered = render({}, f"--kube-version=1.{minor}.1")
    for kind in RUNTIMES:
        rendered_crd = the(rendered, "CustomResourceDefinition", f"{kind.lower()}s.rlhf.dev")
        assert rendered_crd["spec"] == definition(kind, minor)["spec"]


def test_an_old_server_gets_what_it_knows():
    old = render(EVERYTHING, "--kube-version=1.20.2")
    assert the(old, "PodDisruptionBudget")["apiVersion"] == "policy/v1beta1"
    for minor in (24, 25, 29, 30):
        rendered = the(render({}, f"--kube-version=1.{minor}.1"), *DEFINITION)
        assert rendered["spec"] == crd(minor)["spec"]


def test_the_crd_stays_when_the_release_goes():
    rendered = the(render(), *DEFINITION)
    assert rendered["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    loose = the(render({"crds": {"keep": False}}), *DEFINITION)
    assert "helm.sh/resource-policy" not in loose["metadata"].get("annotations", {})


def test_the_operator_reads_its_settings_from_the_environment_that_the_chart_gives(everything):
    assert Settings.read(environment(everything)) == Settings(
        trainer_image="registry.example/t:2",
        limits=Limits.model_validate_json('{"hostPaths": ["/models"], "requireQueue": true}'),
        token_key=b"x" * 32,
        own_namespace="x" * 32,
        identity="x" * 32,
        workspace_claim="shared",
        requests=False,
        tmp_size_limit="200Gi",
        pod_security={"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch"},
        image_pull_policy="Never",
        image_pull_secrets=("everywhere",),
        metrics_port=9000,
        review_metrics=True,
        metrics_from=tuple(MONITORING),
        gpu_prices={"nvidia.com/gpu": 2.5, "nvidia.com/mig-1g.10gb": 0},
        keep_lost_pods=True,
        webhook_port=9999,
        log_format="text",
    )
    default = Settings.read(environment(render()))
    assert (default.namespaces, default.webhook_port, default.metrics_port) == ((), None, 8080)
    assert (default.metrics_from, default.gpu_prices) == ((), {})
    assert (default.requests, default.tmp_size_limit, default.image_pull_secrets) == (True, None, ())
    assert Settings.read(environment(render(NAMESPACED))).namespaces == ("training", "research")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rlhf-trainer", "REGISTRY/rlhf-trainer:VERSION"),
        ("team/t", "REGISTRY/team/t:VERSION"),
        ("t@sha256:0f", "REGISTRY/t@sha256:0f"),
        ("registry.example:5000/team/t", "registry.example:5000/team/t:VERSION"),
        ("registry.example/t:2", "registry.example/t:2"),
        ("localhost/t@sha256:0f", "localhost/t@sha256:0f"),
    ],
)
@pytest.mark.parametrize("registry", ["", "mirror:5000/rlhf"])
def test_an_image_without_a_registry_or_tag_has_the_releases_and_the_charts_version(
    registry, given, expected
):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    published = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["registry"]
    expected = expected.replace("REGISTRY", registry or published).replace("VERSION", chart["appVersion"])
    values = {"global": {"imageRegistry": registry}, "jobs": {"trainerImage": given}}
    if not re.search("[:@][^/]*$", given):
        values["image"] = {"repository": given}
    objects = render(values)
    assert environment(objects)["RLHF_TRAINER_IMAGE"] == expected
    if "image" in values:
        pods = (pod_of(objects), the(objects, "Pod")["spec"])
        assert {container["image"] for pod in pods for container in pod["containers"]} == {expected}


def test_pull_secrets_are_those_of_all_charts_and_the_charts_own():
    everywhere = ["one", {"name": "two"}]
    values = {
        "global": {"imagePullSecrets": everywhere},
        "imagePullSecrets": [{"name": "two"}, {"name": "own"}],
    }
    objects = render(values)
    for pod in (pod_of(objects), the(objects, "Pod")["spec"]):
        assert [secret["name"] for secret in pod["imagePullSecrets"]] == ["one", "two", "own"]
    assert Settings.read(environment(objects)).image_pull_secrets == ("one", "two")
    assert "imagePullSecrets" not in pod_of(render())


def test_what_selects_the_operator_finds_its_pods(everything):
    pod = the(everything, "Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels.items() >= OPERATOR.items()
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports == {"metrics": 9000, "webhook": 9999}
    for service in (o for o in everything if o["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert service["spec"]["ports"][0]["targetPort"] in ports
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert the(everything, kind)["spec"][key]["matchLabels"].items() <= labels.items()
    assert the(everything, "Deployment")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not the(everything, "Pod")["metadata"]["labels"].items() >= OPERATOR.items()


def test_prometheus_finds_the_metrics_service(everything):
    monitor = the(everything, "ServiceMonitor")
    service = the(everything, "Service", "rlhf-operator-metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    # The namespace of a job's series is the job's, not the operator's.
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


def test_network_policies_let_through_what_must_pass(everything):
    """Metrics and `helm test` in, the API server and jobs out; and jobs let the operator in."""
    policy, ports = the(everything, "NetworkPolicy")["spec"], {}
    for rule in policy["ingress"]:
        ports[rule["ports"][0]["port"]] = rule.get("from")
    own = ports["metrics"][-1]["podSelector"]["matchLabels"]
    assert own.items() <= the(everything, "Pod")["metadata"]["labels"].items()
    assert ports["webhook"] is None  # anyone
    dns, server, jobs = policy["egress"]
    assert {port["port"] for port in dns["ports"] + server["ports"]} == {53, 443, 6443}
    assert jobs["to"][0]["podSelector"]["matchLabels"].items() <= common_labels("ppo").items()
    spec = parse(yaml.safe_load((CHART.parents[1] / "examples" / "sentiment" / "ppo.yaml").read_text())).spec
    pinned = Pinned.make("ppo", spec, Defaults(image="trainer"))
    peer = the(companions(pinned, "job-uid", SYSTEM), "NetworkPolicy")["spec"]["ingress"][1]["from"][0]
    labels = the(everything, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_pods_pass_the_restricted_pod_security_standard(objects):
    for pod in (pod_of(objects), the(objects, "Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] != 0
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert {*pod.get("volumes", [{}])[0]} <= {"name", "emptyDir", "secret"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_openshift_chooses_the_user_where_values_ask_for_it():
    pod = pod_of(render({"podSecurityContext": {"runAsUser": None, "runAsGroup": None}}))
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_namespaced_operator_has_no_right_beyond_its_namespaces():
    objects = render(NAMESPACED)
    assert not [o for o in objects if o["kind"] == "ClusterRoleBinding"]
    bound = {o["metadata"]["namespace"]: o["roleRef"] for o in objects if o["kind"] == "RoleBinding"}
    assert {namespace: role["kind"] for namespace, role in bound.items()} == {
        "training": "Role",
        "research": "Role",
        SYSTEM: "Role",
    }
    wide = the(render(), "ClusterRole", "rlhf-operator")
    narrow = {o["metadata"]["namespace"]: o["rules"] for o in objects if o["kind"] == "Role"}
    assert narrow["training"] == narrow["research"] == wide["rules"]
    (webhook,) = the(objects, "ValidatingWebhookConfiguration")["webhooks"]
    (expression,) = webhook["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["training", "research"]


@pytest.mark.parametrize("values", [{}, {**NAMESPACED, "rbac": {"clusterReads": True}}])
def test_the_operator_makes_secrets_and_may_read_none(values):
    rules = [
        rule for body in render(values) if body["kind"] in ("Role", "ClusterRole") for rule in body["rules"]
    ]
    secrets = [rule["verbs"] for rule in rules if {"secrets", "*"} & set(rule.get("resources", ()))]
    assert secrets
    assert all(verbs == ["create"] for verbs in secrets)


def test_a_namespaced_operator_may_be_let_read_what_is_in_no_namespace():
    objects = render({**NAMESPACED, "rbac": {"clusterReads": True}})
    (bound,) = (o["roleRef"]["name"] for o in objects if o["kind"] == "ClusterRoleBinding")
    rules = the(objects, "ClusterRole", bound)["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get"}
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "clusterrlhfruntimes",
        "resourceflavors",
        "workloadpriorityclasses",
        "priorityclasses",
    }


@pytest.mark.parametrize(
    ("values", "reviewed"),
    [
        ({}, True),
        ({"metrics": {"access": "open"}}, False),
        (NAMESPACED, False),
        ({**NAMESPACED, "metrics": {"access": "authorized"}}, True),
    ],
)
def test_metrics_ask_for_a_token_where_the_operator_may_have_it_reviewed(values, reviewed):
    objects = render(
        {**values, "metrics": {**values.get("metrics", {}), "serviceMonitor": {"enabled": True}}}
    )
    (env,) = (c["env"] for c in pod_of(objects)["containers"])
    assert ({"name": "RLHF_REVIEW_METRICS", "value": "true"} in env) == reviewed
    names = {o["metadata"]["name"] for o in objects if o["kind"] == "ClusterRole"}
    assert ({"rlhf-operator-reviews", "rlhf-operator-metrics-reader"} <= names) == reviewed
    (endpoint,) = the(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert ("bearerTokenFile" in endpoint) == reviewed


def test_kueue_may_read_jobs_where_a_value_names_its_account():
    assert not [o for o in render() if o["metadata"]["name"] == "rlhf-operator-kueue"]
    kueue = {"namespace": "kueue-system", "name": "kueue-controller-manager"}
    objects = render({**NAMESPACED, "rbac": {"kueue": kueue}})
    bound = the(objects, "ClusterRoleBinding", "rlhf-operator-kueue")
    assert bound["subjects"] == [{"kind": "ServiceAccount", **kueue}]
    (rule,) = the(objects, "ClusterRole", bound["roleRef"]["name"])["rules"]
    assert rule == {"apiGroups": ["rlhf.dev"], "resources": ["rlhfjobs"], "verbs": ["get", "list", "watch"]}


def test_no_right_is_a_wildcard(objects):
    for role in (o for o in objects if o["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert not any("*" in named for named in rule.values())


def test_every_subject_is_the_account_of_the_operators_pods(objects):
    account = {"kind": "ServiceAccount", "name": pod_of(objects)["serviceAccountName"], "namespace": SYSTEM}
    for binding in (o for o in objects if o["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        assert binding["subjects"] == [account]


def test_the_token_key_is_long_and_given_ones_are_used():
    secret = the(render(), "Secret", "rlhf-operator-token-key")
    assert len(base64.b64decode(secret["data"]["token-key"])) == 48
    issued = render(ISSUED)
    assert not [o for o in issued if o["kind"] == "Secret"]
    entries = {e["name"]: e for e in pod_of(issued)["containers"][0]["env"]}
    for name, secret in (("RLHF_TOKEN_KEY", "mine"), ("RLHF_PREVIOUS_TOKEN_KEY", "former")):
        assert entries[name]["valueFrom"]["secretKeyRef"] == {"name": secret, "key": "k"}
    assert Settings.read(environment(issued)).token_keys == (b"x" * 32, b"x" * 32)


def test_pods_of_the_operator_get_labels_beside_those_that_select_them(everything):
    deployment = the(everything, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["sidecar.istio.io/inject"] == "false"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_one_replica_may_be_drained():
    assert not [o for o in render(NAMESPACED) if o["kind"] == "PodDisruptionBudget"]


def test_without_the_cluster_a_certificate_is_given_and_none_is_made():
    """Each rendering would make another one: an API server would get the new authority before pods have its
    certificate."""
    with pytest.raises(HelmError, match=r"set webhook\.certManager\.enabled, or webhook\.existingSecret"):
        render({"webhook": {"enabled": True}})
    for wrong, complaint in (
        ({"existingSecret": "mine"}, "needs webhook.caBundle"),
        ({"caBundle": "UEVN"}, "needs webhook.existingSecret"),
        ({**GIVEN, "certManager": {"enabled": True}}, "give one of them"),
    ):
        with pytest.raises(HelmError, match=complaint):
            render({"webhook": {"enabled": True, **wrong}})
    objects = render({"webhook": {"enabled": True, **GIVEN}})
    (webhook,) = the(objects, "ValidatingWebhookConfiguration")["webhooks"]
    assert webhook["clientConfig"]["caBundle"] == GIVEN["caBundle"]
    (volume,) = (v for v in pod_of(objects)["volumes"] if v["name"] == "webhook")
    assert volume["secret"]["secretName"] == GIVEN["existingSecret"]
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "Secret"] == ["rlhf-operator-token-key"]


def test_cert_manager_makes_the_secret_that_the_operator_mounts():
    issued = render(ISSUED)
    certificate = the(issued, "Certificate")
    assert certificate["spec"]["dnsNames"] == [f"short-webhook.{SYSTEM}.svc"]
    (volume,) = (v for v in pod_of(issued)["volumes"] if v["name"] == "webhook")
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    webhook = the(issued, "ValidatingWebhookConfiguration")
    assert webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{SYSTEM}/short-webhook"


def test_names_of_digits_are_names():
    """Unquoted, YAML would read such a namespace as a number."""
    values = {
        "watchNamespaces": ["2024"],
        "tokenKey": {"previousSecret": "34", "key": "1"},
        "serviceAccount": {"name": "77"},
        "priorityClassName": "100",
        "webhook": {"enabled": True, **GIVEN},
    }
    arguments = ("template", "rlhf", str(CHART), "--namespace=123", "--values=-")
    objects = yaml.load_all(helm(*arguments, input=yaml.safe_dump(values)), Loader)
    for body in filter(None, objects):
        kubernetes_validate.validate(body, "1.37", strict=True)


@pytest.mark.parametrize(
    ("release", "name"),
    [("rlhf", "rlhf-operator"), ("rlhf-operator", "rlhf-operator"), ("a", "a-rlhf-operator")],
)
def test_names_come_from_the_release(release, name):
    text = helm("template", release, str(CHART), "--show-only=templates/deployment.yaml")
    assert yaml.safe_load(text)["metadata"]["name"] == name

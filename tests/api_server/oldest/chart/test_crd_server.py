"""The CRD on a real API server: what it stores, refuses and shows of an RLHFJob."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import KubectlError, get, kubectl
from tests.unit.api.manifests import document
from tests.unit.api.schema.shapes import manifests

from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import composed, from_cluster, load, parse

pytestmark = pytest.mark.usefixtures("crd")

EXAMPLES = [
    file
    for file in sorted((Path(__file__).parents[4] / "examples").glob("**/*.yaml"))
    if "runtimes" not in file.parts
]
STATUS = {
    "phase": "Running",
    "totalSteps": 40,
    "step": 7,
    "reward": 0.25,
    "kl": 2.0,
    "weightVersion": 6,
    "staleness": 0.5,
    "stalenessMax": 1,
    "trainerIdle": 0.25,
    "generatorIdle": 0.125,
    "responsesContinued": 3,
    "importanceEffective": 0.75,
    "queue": 3,
    "tokensPerSecond": 812.5,
    "restarts": 1,
    "message": "waiting for generator 1/2",
    "roles": {"trainer": {"desired": 1, "ready": 1}, "generator": {"desired": 2, "ready": 1, "restarts": 1}},
    "generatorReplicas": 2,
    "selector": "rlhf.dev/job=job,rlhf.dev/role=generator",
    "generators": [
        {"role": "generator", "name": "generator-0", "uid": "u", "ready": True, "weightVersion": 6}
    ],
    "plan": {"generator": {"pods": 2, "gpus": 4, "memory": "15.2 GB"}},
    "cluster": {"attempt": 1, "config": "job-5f3a", "counted": ["u"]},
    "lastCheckpoint": {"step": 5, "time": "2026-01-01T00:00:00Z", "uri": "s3://b/p"},
    "conditions": [
        {
            "type": "RolesReady",
            "status": "False",
            "reason": "Waiting",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
        {
            "type": "Suspended",
            "status": "False",
            "reason": "Running",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ],
}


def create(cluster: Cluster, namespace: str, *items: Any, dry: bool = False) -> list[Any]:
    """Creates the objects; returns them as the server stores them. Raises KubectlError with its refusals."""
    text = kubectl(
        cluster.kubeconfig,
        *("create", "-n", namespace, "-f", "-", "-o", "json", "--validate=ignore"),
        *(["--dry-run=server"] if dry else []),
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    made, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        body, end = decoder.raw_decode(text)
        made.append(body)
        text = text[end:]
    return made


def test_examples_are_accepted_by_kubectl_and_read_back(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    for file in EXAMPLES:
        applied = file
        # Of several files, or with variables of the environment: `rlhf render` makes a manifest for kubectl of them.
        if any(mark in file.read_text() for mark in ("include:", "${")):
            applied = tmp_path / file.name
            applied.write_text(json.dumps(composed(file)))
        kubectl(control_plane.kubeconfig, "apply", "-n", namespace, "-f", str(applied))
        ours = load(file)
        stored = get(control_plane.kubeconfig, "rlhf", ours.metadata.name, "-n", namespace)
        assert from_cluster(stored).spec == ours.spec


def test_what_we_accept_the_server_stores_and_hands_back(control_plane: Cluster, namespace: str) -> None:
    accepted: list[tuple[Any, RLHFJob]] = []

    @settings(max_examples=150, phases=[Phase.generate])
    @given(manifests())
    def draw(manifest: Any) -> None:
        manifest = copy.deepcopy(manifest)
        manifest["metadata"]["name"] = f"job-{len(accepted)}"
        try:
            accepted.append((manifest, parse(manifest)))
        except InvalidJob:
            return

    draw()
    assert len(accepted) >= 40  # 70 on average
    stored = create(control_plane, namespace, *(manifest for manifest, _ in accepted), dry=True)
    assert len(stored) == len(accepted)
    for (_, job), body in zip(accepted, stored, strict=True):
        # A null that means nothing is dropped, the number of generators is filled in: the same job.
        assert from_cluster(body).spec == job.spec


NUMBERS = {"learningRate": 1e-07, "weightDecay": 1.0, "epsilon": 1e-30, "gradientClip": 1e300}


def test_numbers_survive(control_plane: Cluster, namespace: str) -> None:
    """A whole float comes back as an integer, DeepSpeed's `5e8` too."""
    job = document("spec.trainer.deepspeed.zero_optimization={stage: 2, reduce_bucket_size: 5.0e8}")
    job["spec"]["optimizer"] = {**NUMBERS, "betas": [0.0, 0.5]}
    job["spec"]["generator"]["engineArguments"] = {"max-num-seqs": 2**53 - 1, "gpu-memory-utilization": 1.0}
    (stored,) = create(control_plane, namespace, job)
    assert json.dumps(stored["spec"]["optimizer"]["weightDecay"]) == "1"
    spec = from_cluster(stored).spec
    assert spec == parse(job).spec
    assert spec.trainer.deepspeed.raw()["zero_optimization"] == {
        "stage": 2,
        "reduce_bucket_size": 500_000_000,
    }


REFUSED = [
    ("metadata.name=a.b", "metadata.name"),
    (f"metadata.name={'a' * 41}", "metadata.name"),
    ("metadata.name=7b-ppo", "metadata.name"),
    ("spec.steps=0", "spec.steps"),
    ("spec.steps=1.5", "spec.steps"),
    ("spec.algorithm=gprpo", "spec.algorithm"),
    ("spec.model.dtype=bf16", "spec.model.dtype"),
    ("spec.ppo.gamma=1.1", "spec.ppo.gamma"),
    ("spec.ppo.clipRatio=0", "spec.ppo.clipRatio"),
    ("spec.optimizer.betas=[0.9]", "spec.optimizer.betas"),
    ("spec.reward.functions[0].function=a.b", "spec.reward.functions"),
    ("spec.generator.replicas=0", "spec.generator.replicas"),
    ("spec.pods.volumes=[{name: d, mountPath: /d}, {name: d, mountPath: /e}]", "spec.pods.volumes[1]"),
    ("spec.pods.volumes=[{name: d}]", "spec.pods.volumes.mountPath"),
    (f"spec.model.reward={'x' * 4097}", "spec.model.reward"),
    (f"spec.env={dict.fromkeys(map('A{}'.format, range(257)), 'x')}", "spec.env"),
    (f"spec.evaluation={{function: 'a:b', data: {['x'] * 4097}}}", "spec.evaluation.data"),
]


@pytest.mark.parametrize(("override", "where"), REFUSED, ids=[case[0][:60] for case in REFUSED])
def test_bad_values_are_refused_with_their_field(
    control_plane: Cluster, namespace: str, override: str, where: str
) -> None:
    with pytest.raises(KubectlError, match="is invalid") as caught:
        create(control_plane, namespace, document(override))
    assert where in str(caught.value)


def test_a_misspelt_key_is_refused_by_kubectl(control_plane: Cluster, namespace: str) -> None:
    """kubectl's own validation refuses it; for a client without validation the server drops the key."""
    job = document()
    job["spec"]["ppo"] = {"kl_coefficient": 0.1}
    with pytest.raises(KubectlError, match="unknown field"):
        kubectl(control_plane.kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(job))
    (stored,) = create(control_plane, namespace, job)
    assert "kl_coefficient" not in stored["spec"]["ppo"]


def test_explain_tells_defaults(control_plane: Cluster) -> None:
    text = kubectl(control_plane.kubeconfig, "explain", "rlhfjob.spec.ppo.klCoefficient")
    assert "Default: 0.05." in text
    assert "<integer>" in kubectl(control_plane.kubeconfig, "explain", "rlhfjob.spec.reward.pods.gpu.count")


def test_scale(control_plane: Cluster, namespace: str) -> None:
    """Also of a job whose manifest does not set the number of generators."""
    job = document()
    del job["spec"]["generator"]
    create(control_plane, namespace, job)
    kubectl(control_plane.kubeconfig, "scale", "-n", namespace, "rlhfjob/job", "--replicas=3")
    assert (
        from_cluster(get(control_plane.kubeconfig, "rlhf/job", "-n", namespace)).spec.generator.replicas == 3
    )
    with pytest.raises(KubectlError, match=r"spec.generator.replicas.*greater than or equal to 1"):
        kubectl(control_plane.kubeconfig, "scale", "-n", namespace, "rlhfjob/job", "--replicas=0")


def test_status_is_stored_whole_and_shown(control_plane: Cluster, namespace: str) -> None:
    create(control_plane, namespace, document())
    status = JobStatus.model_validate_json(json.dumps(STATUS))
    dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = {
        **{key: document()[key] for key in ("apiVersion", "kind")},
        "metadata": {"name": "job", "namespace": namespace},
        "status": dumped,
    }
    applied = kubectl(
        control_plane.kubeconfig,
        *("apply", "--server-side", "--subresource=status", "--validate=ignore", "-f", "-", "-o", "json"),
        input=json.dumps(body),
    )
    stored = json.loads(applied)["status"]
    assert JobStatus.model_validate_json(json.dumps(stored)) == status
    assert {key for key, value in dumped.items() if stored.get(key) != value} == set()
    table = kubectl(control_plane.kubeconfig, "get", "rlhf", "-n", namespace, "-o", "wide").splitlines()
    assert table[0].split() == [
        *("NAME", "PHASE", "REASON", "STEP", "STEPS", "REWARD", "KL", "WEIGHTS"),
        *("GEN", "GENREADY", "GPUS", "RESTARTS", "AGE"),
        *(
            "ALGORITHM",
            "CHECKPOINT",
            "STALENESS",
            "OLDEST",
            "TRAINERIDLE",
            "GENIDLE",
            "CONTINUED",
            "EFFECTIVE",
            "TOKENS/S",
            "QUEUE",
            "MESSAGE",
        ),
    ]
    assert table[1].split()[:11] == ["job", "Running", "7", "40", "0.25", "2", "6", "2", "1", "0", "1"]
    assert table[1].split()[12:] == [
        *("ppo", "5", "0.5", "1", "0.25", "0.125", "3", "0.75", "812.5", "3"),
        *("waiting", "for", "generator", "1/2"),
    ]
    path = f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs/job/scale"
    scale = json.loads(kubectl(control_plane.kubeconfig, "get", "--raw", path))
    assert scale["status"] == {"replicas": 2, "selector": STATUS["selector"]}

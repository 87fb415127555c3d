"""Checks of pods, workspace, scheduling and template overrides: each problem names its field and its remedy."""

import json

import pytest
from tests.unit.api.manifests import document, refusals

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse

BAD = [
    (
        "spec.pods.volumes=[{name: d, mountPath: /d}]",
        "spec.pods.volumes[0]",
        "exactly one source of claim, configMap",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: d, claim: c}]",
        "spec.pods.volumes[0].mountPath",
        "an absolute path",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /a/../b, claim: c}]",
        "spec.pods.volumes[0].mountPath",
        "without ..",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /dev/shm, claim: c}]",
        "spec.pods.volumes[0].mountPath",
        "its own volume there",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /etc, claim: c}]",
        "spec.pods.volumes[0].mountPath",
        "would hide",
    ),
    (
        "spec.pods.volumes=[{name: config, mountPath: /d, claim: c}]",
        "spec.pods.volumes[0].name",
        "has this name",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /d, claim: c}, {name: d, mountPath: /e, claim: c}]",
        "spec.pods.volumes[1].name",
        "is another volume's name too; got 'd'",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /d, claim: c}, {name: e, mountPath: /d, claim: c}]",
        "spec.pods.volumes[1].mountPath",
        "another volume is mounted there",
    ),
    (
        "spec.pods.resources.requests.cpu='4 cores'",
        "spec.pods.resources.requests.cpu",
        "a Kubernetes quantity",
    ),
    ("spec.pods.secrets=[My_Secret]", "spec.pods.secrets[0]", "the name of an object in the cluster"),
    ("spec.pods.tolerations=[{value: v}]", "spec.pods.tolerations[0].key", "unless operator is Exists"),
    ("spec.workspace.subPath=/abs", "spec.workspace.subPath", "a relative path"),
    ("spec.scheduling={gang: coscheduling, queue: q}", "spec.scheduling.queue", "is Volcano's"),
    (
        "spec.reward.pods.template={spec: {hostname: h}}",
        "spec.reward.pods.template.spec.hostname",
        "operator's to set",
    ),
    (
        "spec.pods.template={metadata: {name: n}}",
        "spec.pods.template.metadata.name",
        "labels and annotations",
    ),
    (
        "spec.pods.template={metadata: {labels: {rlhf.dev/job: j}}}",
        "labels['rlhf.dev/job']",
        "operator's to set",
    ),
    (
        "spec.pods.template={spec: {volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: t}}]}}]}}",
        "spec.volumes[0].projected.sources[0].serviceAccountToken",
        "pods of jobs get no credentials",
    ),
    (
        "spec.pods.template={spec: {volumes: [{name: t, projected: {sources: [{podCertificate: {}}]}}]}}",
        "spec.volumes[0].projected.sources[0].podCertificate",
        "pods of jobs get no credentials",
    ),
    (
        "spec.pods.template={spec: {nodeName: node1}}",
        "spec.pods.template.spec.nodeName",
        "use nodeSelector or affinity",
    ),
    (
        "spec.pods.template={spec: {initContainers: [{name: i, $patch: replace}]}}",
        "spec.pods.template.spec.initContainers",
        "must be a list of what to add or change",
    ),
    ("spec.pods.template={kind: Pod}", "spec.pods.template.kind", "metadata and spec"),
    ("spec.pods.template={spec: null}", "spec.pods.template.spec", "must be an object; got null"),
    (
        "spec.pods.template={spec: {containers: [{name: role, command: [sh]}]}}",
        "spec.pods.template.spec.containers[0].command",
        "operator's to set",
    ),
    (
        "spec.pods.template={spec: {containers: [{image: i}]}}",
        "spec.pods.template.spec.containers[0]",
        "an object with a name",
    ),
    (
        "spec.pods.template={spec: {containers: [{name: role, env: [{name: RLHF_TOKEN, value: x}]}]}}",
        "spec.pods.template.spec.containers[0].env[0].name",
        "are reserved",
    ),
    (
        "spec.pods.template={spec: {containers: [{name: role, $patch: delete}]}}",
        "spec.pods.template.spec.containers[0].$patch",
        "would take away",
    ),
    (
        "spec.pods.template={spec: {volumes: null}}",
        "spec.pods.template.spec.volumes",
        "a list of what to add",
    ),
    (
        "spec.pods.template={spec: {$patch: merge}}",
        "spec.pods.template.spec.$patch",
        "must be replace or delete",
    ),
    (
        "spec.env={A B: c}",
        "spec.env['A B']",
        "is not a valid name of an environment variable",
    ),
    ("spec.steps=9223372036854775808", "spec.steps", "must fit in 64 bits"),
    ("spec.steps=2147483648", "spec.steps", "less than or equal to 2147483647"),
]


BAD += [
    (
        f"spec.pods.template={json.dumps({'spec': {key: [{'name': f'a{i}'} for i in range(most + 1)]}})}",
        f"spec.pods.template.spec.{key}",
        f"must have at most {most} items; got {most + 1}",
    )
    for key, most in {"containers": 16, "initContainers": 16, "volumes": 64}.items()
]
BAD += [
    (
        f"spec.pods.template={json.dumps({'metadata': {'annotations': {f'a{i}': '' for i in range(257)}}})}",
        "spec.pods.template.metadata.annotations",
        "at most 256",
    ),
]


@pytest.mark.parametrize(("override", "where", "words"), BAD, ids=[case[0][:99] for case in BAD])
def test_problem_names_field_and_remedy(override: str, where: str, words: str) -> None:
    messages = refusals(override)
    assert any(place.endswith(where) and words in message for place, message in messages.items()), messages


def test_a_role_beside_the_job() -> None:
    """A role's volume takes the place of the job's; what a role asks for counts with the job's GPUs."""
    both = "spec.pods={volumes: [{name: d, mountPath: /d, claim: c}], gpu: {count: 1}}"
    parse(document(both, "spec.reward.pods.volumes=[{name: d, mountPath: /d, secret: s}]"))
    with pytest.raises(
        InvalidJob, match=r"spec.reward.pods.resources.limits: nvidia.com/gpu is what gpu.count"
    ):
        parse(document(both, "spec.reward.pods.resources={limits: {nvidia.com/gpu: '1'}}"))

"""Checks of pods, workspace, scheduling and template overrides: each problem names its field and its remedy."""

import json

import pytest
from tests.unit.api.manifests import assert_refused, document

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.roles import UNTRUSTED

BAD: list[tuple[str, ...]] = [
    # override, place unless it is the overridden field, words: see `assert_refused`
    ("spec.pods.volumes=[{name: d, mountPath: /d}]", "[0]", "exactly one source of claim, configMap"),
    ("spec.pods.volumes=[{name: d, mountPath: d, claim: c}]", "[0].mountPath", "an absolute path"),
    ("spec.pods.volumes=[{name: d, mountPath: /a/../b, claim: c}]", "[0].mountPath", "without .."),
    ("spec.pods.volumes=[{name: d, mountPath: /dev/shm, claim: c}]", "[0].mountPath", "its own volume there"),
    ("spec.pods.volumes=[{name: d, mountPath: /etc, claim: c}]", "[0].mountPath", "would hide"),
    ("spec.pods.volumes=[{name: config, mountPath: /d, claim: c}]", "[0].name", "has this name"),
    (
        "spec.pods.volumes=[{name: d, mountPath: /d, claim: c}, {name: d, mountPath: /e, claim: c}]",
        "[1].name",
        "is another volume's name too; got 'd'",
    ),
    (
        "spec.pods.volumes=[{name: d, mountPath: /d, claim: c}, {name: e, mountPath: /d, claim: c}]",
        "[1].mountPath",
        "another volume is mounted there",
    ),
    ("spec.pods.resources.requests.cpu='4 cores'", "a Kubernetes quantity"),
    ("spec.pods.secrets=[My_Secret]", "[0]", "the name of an object in the cluster"),
    ("spec.pods.tolerations=[{value: v}]", "[0].key", "unless operator is Exists"),
    ("spec.workspace.subPath=/abs", "a relative path"),
    ("spec.scheduling={gang: coscheduling, queue: q}", ".queue", "is Volcano's"),
    ("spec.reward.pods.template={spec: {hostname: h}}", ".spec.hostname", "operator's to set"),
    ("spec.pods.template={metadata: {name: n}}", ".metadata.name", "labels and annotations"),
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
    ("spec.pods.template={spec: {nodeName: node1}}", ".spec.nodeName", "use nodeSelector or affinity"),
    (
        "spec.pods.template={spec: {initContainers: [{name: i, $patch: replace}]}}",
        ".spec.initContainers",
        "must be a list of what to add or change",
    ),
    ("spec.pods.template={kind: Pod}", ".kind", "metadata and spec"),
    ("spec.pods.template={spec: null}", ".spec", "must be an object; got null"),
    (
        "spec.pods.template={spec: {containers: [{name: role, command: [sh]}]}}",
        ".spec.containers[0].command",
        "operator's to set",
    ),
    ("spec.pods.template={spec: {containers: [{image: i}]}}", ".spec.containers[0]", "an object with a name"),
    (
        "spec.pods.template={spec: {containers: [{name: role, env: [{name: RLHF_TOKEN, value: x}]}]}}",
        ".spec.containers[0].env[0].name",
        "are reserved",
    ),
    (
        "spec.pods.template={spec: {containers: [{name: role, $patch: delete}]}}",
        ".spec.containers[0].$patch",
        "would take away",
    ),
    ("spec.pods.template={spec: {volumes: null}}", ".spec.volumes", "a list of what to add"),
    ("spec.pods.template={spec: {$patch: merge}}", ".spec.$patch", "must be replace or delete"),
    ("spec.env={A B: c}", "['A B']", "is not a valid name of an environment variable"),
    ("spec.steps=9223372036854775808", "must fit in 64 bits"),
    ("spec.steps=2147483648", "less than or equal to 2147483647"),
]
BAD += [
    (
        f"spec.pods.template={json.dumps({'spec': {key: [{'name': f'a{i}'} for i in range(most + 1)]}})}",
        f".spec.{key}",
        f"must have at most {most} items; got {most + 1}",
    )
    for key, most in {"containers": 16, "initContainers": 16, "volumes": 64}.items()
]
BAD += [
    (
        f"spec.pods.template={json.dumps({'metadata': {'annotations': {f'a{i}': '' for i in range(257)}}})}",
        ".metadata.annotations",
        "at most 256",
    ),
]


BAD += [
    (f"spec.{pods}.image={image!r}", "must be an image's name, or be left out")
    for pods, image in (("pods", ""), ("trainer.pods", " "), ("sandbox.pods", ""))
]


@pytest.mark.parametrize("case", BAD, ids=[case[0][:99] for case in BAD])
def test_problem_names_field_and_remedy(case: tuple[str, ...]) -> None:
    assert_refused(*case)


@pytest.mark.parametrize("key", ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"])
def test_a_trusted_role_alone_may_share_what_keeps_pods_apart(key: str) -> None:
    template = f"pods.template={{spec: {{{key}: true}}}}"
    parse(document(f"spec.trainer.{template}"))
    for role in UNTRUSTED:
        given = ("spec.environment={path: 'a:B'}", "spec.sandbox={pods: {image: i}}")
        assert_refused(
            f"spec.{role}.{template}", f".spec.{key}", "keeps pods of this role apart", given=given
        )


def test_a_role_beside_the_job() -> None:
    """A role's volume takes the place of the job's; what a role asks for counts with the job's GPUs."""
    both = "spec.pods={volumes: [{name: d, mountPath: /d, claim: c}], gpu: {count: 1}}"
    parse(document(both, "spec.reward.pods.volumes=[{name: d, mountPath: /d, secret: s}]"))
    with pytest.raises(
        InvalidJob, match=r"spec.reward.pods.resources.limits: nvidia.com/gpu is what gpu.count"
    ):
        parse(document(both, "spec.reward.pods.resources={limits: {nvidia.com/gpu: '1'}}"))

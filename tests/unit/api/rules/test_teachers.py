"""Several teachers: each has settings, processes and memory of its own, and what no row can reach is refused."""

import pytest
from tests.unit.api.manifests import job, refusals

from rlhf_api.contract.run import RunConfig, places, replicas
from rlhf_api.contract.teachers import alike, shares_of
from rlhf_api.estimate.resources import plan
from rlhf_api.estimate.sharing.places import separate_gpus, shared_places
from rlhf_api.estimate.sizes import Size
from rlhf_api.graph import TEACHER, Infer
from rlhf_api.roles import Role
from rlhf_api.rules.health import metrics_of
from rlhf_api.spec import Spec

ALONE = (
    *("spec.algorithm=distillation", "spec.ppo={}", "spec.reward={}", "spec.sampling={}"),
    *("spec.model={policy: org/policy}", "spec.distillation={minibatchSize: 8}"),
)
SOURCES = "spec.data={promptsPerStep: 8, sources: [{path: a.jsonl, teacher: small}, {path: b.jsonl, teacher: large}]}"
SMALL = "{name: small, model: org/small, replicas: 2, dtype: float32}"
LARGE = (
    "{name: large, model: org/large, engine: vllm, tensorParallelSize: 4, "
    "pods: {gpu: {count: 4, memoryGigabytes: 80}, nodeSelector: {gpu: h100}}}"
)
TAUGHT = (
    *ALONE,
    SOURCES,
    f"spec.distillation.teachers=[{SMALL}, {LARGE}]",
    "spec.pods.gpu={count: 1, memoryGigabytes: 80}",
    "spec.reference={replicas: 1, microBatchTokens: 4096}",
)
SIZES = {
    "policy": Size(1e9),
    "spec.distillation.teachers[small].model": Size(2e9),
    "spec.distillation.teachers[large].model": Size(32e9),
}
WHERE = "spec.distillation.teachers[{}]"


def taught() -> Spec:
    return job(*TAUGHT).spec


def test_each_teacher_has_processes_of_its_own_with_its_settings_over_the_roles():
    small, large = shares_of(taught())
    assert (list(small.processes), list(large.processes)) == ([0, 1], [2])
    assert (small.spec.model.reference, large.spec.model.reference) == ("org/small", "org/large")
    assert (small.spec.reference.engine, large.spec.reference.engine) == ("transformers", "vllm")
    assert {share.spec.reference.micro_batch_tokens for share in (small, large)} == {4096}
    assert replicas(taught(), Role.REFERENCE) == len(places(taught(), Role.REFERENCE)) == 3
    views = [
        RunConfig(job="j", spec=taught(), workdir="/w").view_of(Role.REFERENCE, index) for index in range(3)
    ]
    assert [config.dtype(Role.REFERENCE) for config in views] == ["float32", "float32", "bfloat16"]


def test_the_graph_asks_about_each_response_by_the_teacher_of_its_row():
    graph = taught().graph
    (inferred,) = [
        node for node in graph.prepare if isinstance(node, Infer) and node.model.name == "reference"
    ]
    assert TEACHER in inferred.reads
    assert TEACHER in graph.source.writes


def test_the_plan_adds_up_what_each_teacher_takes():
    made = plan(taught(), SIZES)[Role.REFERENCE]
    assert (made.pods, made.gpus) == (3, 2 * 1 + 1 * 4)
    assert made.memory is not None
    assert ": 1e9 parameters" in (plan(taught(), SIZES)[Role.TRAINER].memory or ""), "of none by name"
    small, large = made.memory.split("; ")
    assert small == "small: 8 of 80 GB without activations: 2e9 parameters x 4 B"
    assert large == "large: 16 of 80 GB without the KV cache: 32e9 parameters x 2 B / 4 GPUs"


def test_gpus_of_one_machine_are_given_by_each_teachers_own_number():
    spec = taught()
    taken = [at for place, at in shared_places(spec, 8).items() if place[0] is Role.REFERENCE]
    assert [len(at) for at in taken] == [1, 1, 4]
    assert len({gpu for at in taken for gpu in at}) == 6
    # With one under vLLM, each teacher has GPUs of its own.
    assert separate_gpus(spec) == 1 + 1 + 2 * 1 + 4


def test_processes_of_one_teacher_are_alike():
    assert alike(taught(), Role.REFERENCE, 0, {0, 1, 2}) == [0, 1]
    assert alike(taught(), Role.REFERENCE, 2, {0, 1}) == []
    assert alike(taught(), Role.GENERATOR, 0, {0, 5}) == [0, 5]


def test_a_rule_may_watch_the_divergence_from_each_teacher():
    names = metrics_of(taught())
    assert names is not None
    assert {"teacher_small_kl_mean", "teacher_large_kl_mean"} <= set(names)


@pytest.mark.parametrize(
    ("overrides", "where", "words"),
    [
        (("spec.model.reference=org/other",), "spec.model.reference", "teaches no row beside"),
        (
            ("spec.data.sources=[{path: a.jsonl, teacher: tall}]",),
            "spec.data.sources[0].teacher",
            "is no teacher of spec.distillation.teachers, which has small, large; got 'tall'",
        ),
        (
            (f"spec.distillation.teachers=[{SMALL}, {SMALL}]", "spec.data.sources=[{path: a.jsonl}]"),
            "spec.distillation.teachers[1].name",
            "two teachers have this name",
        ),
        (
            ("spec.distillation.teachers=[]", "spec.model.reference=org/other"),
            "spec.data.sources[0].teacher",
            "applies only to teachers with names",
        ),
        (
            (f"spec.distillation.teachers=[{SMALL}, {LARGE.replace('count: 4', 'count: 2')}]",),
            WHERE.format("large") + ".pods.gpu.count",
            "must be 4 for a reference pod: tensorParallelSize 4; got 2",
        ),
        (
            (f"spec.distillation.teachers=[{SMALL}, {LARGE.replace('engine: vllm, ', '')}]",),
            WHERE.format("large") + ".tensorParallelSize",
            "applies only to spec.distillation.teachers[large].engine vllm",
        ),
        (
            ("spec.distillation.teachers=[{name: small, model: a, microBatchTokens: 100}, "
             "{name: large, model: b}]",),
            WHERE.format("small") + ".microBatchTokens",
            "one answer can have",
        ),
        (
            ("spec.distillation.teachers=[{name: small, model: a, tempo: 1}]",),
            "spec.distillation.teachers[0].tempo",
            "",
        ),
        (
            ("spec.distillation.teachers=[{name: small, model: a, pods: {volumes: [{name: v, mountPath: /tmp, "
             "claim: c}]}}, {name: large, model: b}]",),
            WHERE.format("small") + ".pods.volumes[0].mountPath",
            "the operator mounts its own volume there",
        ),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused(overrides, where, words):
    problems = refusals(*TAUGHT, *overrides)
    assert where in problems, problems
    assert words in problems[where]

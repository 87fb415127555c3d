"""`spec.placement` on this machine: what is decided, what is said of it, and what processes read of it."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.unit.api.estimate.shared import AHEAD, EIGHT, GRPO, H200, LARGE, REFERENCE, SMALL
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse, runnable
from rlhf_operator.commands.plan_table import plan_lines
from rlhf_operator.local.resources import gpus
from rlhf_operator.local.resources.placement import Placement, decide, foresee
from rlhf_operator.verbs.submit import as_written

PAGE = Path(__file__).parents[4] / "docs" / "guides" / "one-gpu.md"
SHARED, SEPARATE = "spec.placement=shared", "spec.placement=separate"


def placed(count: int | Sequence[str], *overrides: str, memory: float | None = H200, size=SMALL) -> Placement:
    present = [str(i) for i in range(count)] if isinstance(count, int) else count
    return decide(job(*GRPO, *overrides).spec, present, {"policy": size} if size else {}, memory)


@pytest.mark.parametrize(
    ("count", "overrides", "shared"),
    [
        (0, (), False),
        (1, (), True),
        (2, (), False),
        (2, REFERENCE, False),
        (2, (*REFERENCE, "spec.reference.engine=vllm"), True),
        (8, EIGHT, True),
        (16, EIGHT, False),
        (1, (SHARED,), True),
        (2, (SHARED,), True),
        (0, (SHARED,), True),
        (2, (SEPARATE,), False),
        (0, (SEPARATE,), False),
    ],
)
def test_gpus_are_shared_where_there_are_too_few_or_the_manifest_says_so(
    count: int, overrides: tuple[str, ...], shared: bool
) -> None:
    made = placed(count, *overrides)
    assert (made.shared_gpus, made.shared_gpu_count) == (shared, count if shared else 0)
    assert bool(made.lines) == shared, "what is as ever needs no words"


def test_the_decision_says_its_reason_and_the_division() -> None:
    lines = placed(1).lines
    assert lines[0] == (
        "placement auto: trainer, generator need 2 GPUs, this machine has 1: they share it, taking turns, as "
        "responses are sampled only while the trainer waits"
    )
    assert lines[-1].startswith("KV cache 1.5 GB, for all sequences at once")
    assert (
        placed(1, AHEAD)
        .lines[0]
        .endswith(
            "they share it, its memory divided for good, as responses are sampled while the trainer computes"
        )
    )
    assert (
        placed(2, SHARED).lines[0].startswith("placement shared: trainer and generator share 2 GPUs, taking")
    )
    (line,) = placed(0, SHARED).lines
    assert line == "placement shared, without GPUs: trainer and generator take turns"
    (line,) = placed(1, memory=None).lines
    assert line.startswith("placement auto"), "the processes divide what the driver does not tell"


def test_a_gpu_that_is_named_several_times_is_divided_by_hand() -> None:
    by_hand = (
        "spec.generator.engineArguments={gpu-memory-utilization: 0.2, kv-cache-memory-bytes: 2000000000}"
    )
    assert placed(["0", "0"], by_hand) == Placement()
    with pytest.raises(InvalidJob, match=r"CUDA_VISIBLE_DEVICES: names a GPU several times.*got 0,0"):
        placed(["0", "0"], by_hand, SHARED)


@pytest.mark.parametrize(
    ("count", "overrides", "words"),
    [
        (1, (SEPARATE,), r"spec: trainer, generator need 2 GPUs, .*`spec.placement: shared`"),
        (
            1,
            ("spec.trainer.processesPerReplica=2",),
            r"has 1, and they cannot share: needs 2",
        ),
        (
            1,
            ("spec.trainer.processesPerReplica=2", SHARED),
            r"^spec.trainer: needs 2 GPUs, and 1 is there to share",
        ),
    ],
)
def test_what_can_neither_be_apart_nor_share_is_refused(
    count: int, overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        placed(count, *overrides)


def test_what_does_not_fit_is_refused_before_anything_starts() -> None:
    with pytest.raises(
        InvalidJob, match=r"they cannot share: on shared GPUs, .*offload_optimizer.device cpu"
    ):
        placed(1, size=LARGE)


def test_a_model_of_the_hub_is_measured_when_it_is_here(tmp_path: Path) -> None:
    lines = placed(1, size=None).lines
    assert lines[1:] == (
        "its memory is divided once the configuration of org/policy is here; spec.model.parameters would say it now",
    )
    both = "{gpu-memory-utilization: 0.2, kv-cache-memory-bytes: 2000000000}"
    assert len(placed(1, f"spec.generator.engineArguments={both}", size=None).lines) == 1
    with pytest.raises(InvalidJob, match=r"spec.model.parameters: .*they cannot share: is needed"):
        placed(1, f"spec.model.policy={tmp_path}", size=None)
    with pytest.raises(InvalidJob, match=r"set kv-cache-memory-bytes too"):
        placed(1, "spec.generator.engineArguments={gpu-memory-utilization: 0.2}", size=None)


def test_a_plan_on_a_machine_with_gpus_foresees_what_a_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "memory", lambda present: H200 if present else None)
    one = os.environ | {gpus.VISIBLE: "GPU-0"}
    spec, none = job(*GRPO).spec, os.environ | {gpus.VISIBLE: ""}
    assert foresee(spec, one, {"policy": SMALL})[0].startswith("on this machine: placement auto: trainer,")
    assert foresee(spec, one, {"policy": LARGE})[0].startswith(
        "on this machine `rlhf run` refuses it: spec.pla"
    )
    assert foresee(spec, none, {"policy": SMALL}) == []
    assert len(foresee(job(*GRPO, SHARED).spec, none, {"policy": SMALL})) == 1


CLAIMED = "spec.pods.gpu={count: 1, deviceClass: gpu.nvidia.com, memoryGigabytes: 80}"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (("spec.pods.gpu={count: 1}",), "spec.pods.gpu: a device plugin gives a GPU to one container"),
        (("spec.trainer.pods.gpu={count: 1}",), "spec.trainer.pods.gpu: a device plugin gives"),
        ((CLAIMED, "spec.trainer.replicas=2"), "spec.trainer.replicas: processes that share GPUs are one pod"),
        ((CLAIMED, "spec.generator={podsPerReplica: 2, tensorParallelSize: 2}"), "spec.generator.podsPerReplica: a"),
        ((CLAIMED, "spec.generator.replicas=2"), "spec.generator: needs 2 GPUs, and 1 is there to share"),
        ((CLAIMED, "spec.generator.autoscale={minReplicas: 1, maxReplicas: 2}"), "spec.generator.autoscale: no"),
        ((CLAIMED, "spec.podRetention=always"), "spec.podRetention: a shared pod ends with its trainer"),
        ((CLAIMED, "spec.generator.pods.nodeSelector={a: b}"), "spec.generator.pods.nodeSelector: is of the pod"),
        ((CLAIMED, "spec.env={CUDA_VISIBLE_DEVICES: '0'}"), "spec.env.CUDA_VISIBLE_DEVICES: is set for each"),
        ((CLAIMED, "spec.model.parameters=7.6e9"), "spec.placement: on shared GPUs, while it generates one GPU"),
    ],
)  # fmt: skip
def test_what_a_shared_pod_cannot_be_is_refused_by_the_command_and_by_the_operator(
    overrides: tuple[str, ...], where: str
) -> None:
    document = job(*GRPO, SHARED, *overrides)
    with pytest.raises(InvalidJob, match=re.escape(where)):
        as_written(document, "default")
    with pytest.raises(InvalidJob, match=re.escape(where)):
        runnable(document.model_dump(mode="json", by_alias=True, exclude_unset=True))


def test_on_a_cluster_processes_share_claimed_gpus_or_none() -> None:
    for accepted in ((CLAIMED,), (), ("spec.generator.pods.resources={requests: {cpu: 2}}",)):
        as_written(job(*GRPO, SHARED, *accepted), "default")


def test_a_plan_shows_the_one_pod_of_a_cluster_and_the_division_of_its_gpus() -> None:
    lines = plan_lines(job(*GRPO, SHARED, CLAIMED, "spec.model.parameters=1.544e9").spec)
    rows = [line.split()[:3] for line in lines[1:4]]
    assert rows == [["trainer", "1", "1"], ["generator", "0", "0"], ["reward", "0", "0"]]
    assert any("all roles are the trainer's one pod" in line for line in lines)
    assert any(line.startswith("on a cluster: KV cache") for line in lines)
    plugin = plan_lines(job(*GRPO, SHARED, "spec.pods.gpu={count: 1}").spec)
    assert any(line.startswith("on a cluster it is refused: spec.pods.gpu:") for line in plugin)


def test_a_trainer_alone_has_no_placement() -> None:
    with pytest.raises(InvalidJob, match=r"spec.placement: applies only to roles that may share"):
        job("spec.algorithm=sft", "spec.ppo={}", SHARED)


def test_the_page_about_one_gpu_is_what_a_run_says() -> None:
    text = PAGE.read_text()
    written, _ = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.S | re.M)
    decision, refusal = re.findall(r"^```text\n(.*?)\n```", text, flags=re.S | re.M)
    assert list(decide(parse(yaml.safe_load(written)).spec, ["0"], {}, 80e9).lines) == decision.splitlines()
    with pytest.raises(InvalidJob) as error:
        placed(1, SHARED, size=LARGE, memory=150e9)
    assert str(error.value) == refusal

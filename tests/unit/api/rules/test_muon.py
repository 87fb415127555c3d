"""`spec.optimizer.matrices: muon` is refused where DeepSpeed's Muon would train something else than it says."""

import pytest
from tests.unit.api.manifests import job, refusals

MUON = "spec.optimizer.matrices=muon"
WHERE = "spec.optimizer.matrices"
DEEPSPEED = "spec.trainer.deepspeed"
FLOAT32 = (f"{DEEPSPEED}={{}}", "spec.model.dtype=float32")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("spec.model.lora={policy: {}}",),
            "the adapter of the policy trains two factors of it; remove spec.mo",
        ),
        ((f"{DEEPSPEED}.optimizer={{type: AdamW}}",), f"than {DEEPSPEED}.optimizer, which trains the policy"),
        (
            (f"{DEEPSPEED}.zero_optimization={{stage: 1, offload_optimizer: {{device: cpu}}}}",),
            f"is not computed on a CPU; remove {DEEPSPEED}.zero_optimization.offload_optimizer",
        ),
        (
            (f"{DEEPSPEED}.zero_optimization.stage=2",),
            "clips Muon's updates in place of the gradient; the policy has bfloat16 at stage 2; change "
            f"{DEEPSPEED}.zero_optimization.stage, or use adamw; got 'muon'",
        ),
        ((f"{DEEPSPEED}.zero_optimization.stage=3",), "the policy has bfloat16 at stage 3"),
        ((*FLOAT32, f"{DEEPSPEED}.zero_optimization.stage=1"), "the policy has float32 at stage 1"),
        ((f"{DEEPSPEED}={{}}", "spec.model.dtype=float16"), "the policy has float16 at stage 1"),
        (
            ("spec.trainer.criticDeepspeed.zero_optimization.stage=2",),
            "the critic has bfloat16 at stage 2; change spec.trainer.criticDeepspeed.zero_optimization.stage",
        ),
    ],
)
def test_what_does_not_combine_with_muon_is_refused_with_the_reason(overrides, says):
    assert says in refusals(MUON, *overrides)[WHERE]
    job(*overrides)


@pytest.mark.parametrize("overrides", [(), FLOAT32, (f"{DEEPSPEED}.zero_optimization.stage=1",)])
def test_whole_matrices_are_accepted(overrides):
    assert job(MUON, *overrides).spec.optimizer.matrices == "muon"


def test_another_optimizer_is_refused_with_those_there_are():
    assert "'lion' is none of adamw, muon" in refusals("spec.optimizer.matrices=lion")[WHERE]

"""`spec.optimizer.moments: 8bit` is refused where another optimizer, or another place, has the moments."""

import pytest
from tests.unit.api.manifests import job, refusals

EIGHT_BIT = "spec.optimizer.moments=8bit"
WHERE = "spec.optimizer.moments"
DEEPSPEED = "spec.trainer.deepspeed"
AWAY = "zero_optimization={stage: 2, offload_optimizer: {device: cpu}}"
HALF = "{enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("spec.optimizer.matrices=muon",),
            "is of AdamW, and Muon keeps a momentum of its own; set spec.optimizer.matrices: adamw, or use float32",
        ),
        (
            (f"{DEEPSPEED}.optimizer={{type: AdamW}}",),
            f"the trainer's own AdamW; remove {DEEPSPEED}.optimizer",
        ),
        (
            (f"{DEEPSPEED}.{AWAY}",),
            f"is kept on GPUs; remove {DEEPSPEED}.zero_optimization.offload_optimizer, or use float32; got '8bit'",
        ),
        (
            (f"{DEEPSPEED}={{zero_optimization: {{stage: 2}}, bf16: {HALF}}}",),
            f"contradicts {DEEPSPEED}.bf16.bf16_optimizer_states; remove that, or use float32",
        ),
        (
            (f"spec.trainer.criticDeepspeed.{AWAY}",),
            "remove spec.trainer.criticDeepspeed.zero_optimization.offload_optimizer",
        ),
    ],
)
def test_what_does_not_combine_with_8_bits_is_refused_with_the_reason(overrides, says):
    assert says in refusals(EIGHT_BIT, *overrides)[WHERE]
    job(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("spec.model.lora={policy: {}}",),
        *((f"{DEEPSPEED}.zero_optimization.stage={n}",) for n in (1, 2, 3)),
    ],
)
def test_moments_of_8_bits_are_accepted_at_any_stage_and_with_an_adapter(overrides):
    assert job(EIGHT_BIT, *overrides).spec.optimizer.moments == "8bit"

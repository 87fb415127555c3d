"""Whatever the settings of a trained model, a GPU computes what a CPU does, and goes on from its own state."""

import pytest
import torch

from rlhf_trainer.models.state import load_training_state

from .cases import FAMILIES, UPDATES, Update
from .reference import (
    GRADIENT,
    OUTPUT,
    READ,
    Batch,
    Cpu,
    assert_close,
    copy_state,
    first_gradients,
    make_engine,
    update,
)

pytestmark = pytest.mark.usefixtures("one_rank")
SHAPE = FAMILIES["qwen2"]


@pytest.mark.parametrize("case", UPDATES, ids=str)
def test_an_update_is_that_of_a_cpu_in_float32(cpu: Cpu, case: Update):
    batch = Batch(SHAPE.vocab_size, case.head)
    values, gradients = cpu.compute(SHAPE, case.head, case.dtype, lora=case.tuned == "lora")
    engine = make_engine(SHAPE, case)
    inferred = engine.infer(batch.sequences, READ[case.head], batch.sizes)
    assert float((inferred - values).abs().max()) < OUTPUT[case.dtype]
    made = update(engine, case.head, batch, 1e-3)
    assert not made.get("overflow")
    assert_close(first_gradients(copy_state(engine)), gradients, GRADIENT[case.dtype])


@pytest.mark.parametrize("case", UPDATES, ids=str)
def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped(case: Update):
    batches = [Batch(SHAPE.vocab_size, case.head, seed) for seed in (1, 2)]
    engine = make_engine(SHAPE, case)
    update(engine, case.head, batches[0], 1e-3)
    saved = copy_state(engine)
    expected = update(engine, case.head, batches[1], 1e-3)
    resumed = make_engine(SHAPE, case)
    load_training_state(resumed, saved.__getitem__)
    loaded = copy_state(resumed)
    assert {name for name in saved if not torch.equal(loaded[name], saved[name])} == set()
    assert update(resumed, case.head, batches[1], 1e-3) == expected
    after, uninterrupted = copy_state(resumed), copy_state(engine)
    assert {name for name in after if not torch.equal(after[name], uninterrupted[name])} == set()

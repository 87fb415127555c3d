"""Ten model families train on a GPU as on a CPU, as policy and critic, padded and packed, in each dtype."""

import pytest

from .cases import FAMILIES, Update
from .reference import (
    EXPERTS,
    GRADIENT,
    Batch,
    Cpu,
    assert_close,
    copy_state,
    first_gradients,
    make_engine,
)
from .reference import update as make_update

pytestmark = pytest.mark.usefixtures("one_rank")
WAYS = (("bfloat16", "auto"), ("bfloat16", "padded"), ("float32", "auto"), ("float16", "auto"))


@pytest.mark.parametrize("head", ["policy", "critic"])
@pytest.mark.parametrize(("dtype", "attention"), WAYS, ids=["-".join(way) for way in WAYS])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_on_a_cpu(cpu: Cpu, family: str, dtype: str, attention: str, head: str):
    config = FAMILIES[family]
    batch = Batch(config.vocab_size, head)
    _, gradients = cpu.compute(config, head, dtype)
    engine = make_engine(config, Update(dtype, attention, "1", head, "whole", "none", "auto"))
    assert not make_update(engine, head, batch, 1e-3).get("overflow")
    tolerance = GRADIENT[dtype] * (EXPERTS if family == "qwen3-moe" else 1)
    assert_close(first_gradients(copy_state(engine)), gradients, tolerance)

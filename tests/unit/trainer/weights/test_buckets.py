import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.weights.buckets import ALIGNMENT, Spec, pack, unpack

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 6), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[str, torch.Tensor]]:
    kinds = draw(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=12))
    generator = torch.Generator().manual_seed(len(kinds))
    return [
        (f"layer.{i}", torch.randint(0, 2, shape, generator=generator).mul(100).to(dtype))
        for i, (shape, dtype) in enumerate(kinds)
    ]


@given(tensors(), st.integers(1, 300))
def test_what_is_unpacked_is_what_was_packed(given_tensors, bucket_bytes):
    unpacked = [pair for bucket in pack(given_tensors, bucket_bytes, CPU) for pair in unpack(bucket)]
    assert [name for name, _ in unpacked] == [name for name, _ in given_tensors]
    for (_, back), (_, original) in zip(unpacked, given_tensors, strict=True):
        assert back.dtype == original.dtype
        assert back.shape == original.shape


@given(tensors(), st.integers(1, 300))
def test_values_survive(given_tensors, bucket_bytes):
    originals = dict(given_tensors)
    for bucket in pack(given_tensors, bucket_bytes, CPU):  # a bucket's bytes are good until the next but one
        for name, back in unpack(bucket):
            assert torch.equal(back, originals[name])


@given(tensors(), st.integers(1, 300))
def test_buckets_are_full_but_not_too_full(given_tensors, bucket_bytes):
    buckets = [(bucket.specs, len(bucket.data)) for bucket in pack(given_tensors, bucket_bytes, CPU)]
    for specs, size in buckets:
        assert size > 0
        assert size % ALIGNMENT == 0
        assert size == sum(spec.room for spec in specs)
        assert size <= bucket_bytes or len(specs) == 1
    for (_, size), (following, _) in itertools.pairwise(buckets):
        assert size + following[0].room > bucket_bytes  # it would not have fitted


@given(tensors())
def test_the_same_tensors_give_the_same_bytes(given_tensors):
    first = [bucket.data.clone() for bucket in pack(given_tensors, 64, CPU)]
    second = [bucket.data.clone() for bucket in pack(given_tensors, 64, CPU)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_one_bucket_may_travel_while_the_next_is_packed():
    source = [(f"{i}", torch.full((4,), float(i))) for i in range(6)]
    previous = None
    for index, bucket in enumerate(pack(source, 16, CPU)):
        if previous is not None:
            assert unpack(previous)[0][1].tolist() == [index - 1.0] * 4
        previous = bucket


def test_a_tensor_is_copied_before_the_next_is_asked_for():
    shared = torch.empty(8)
    source = ((f"{i}", shared.fill_(i)) for i in range(4))
    (bucket,) = pack(source, 1 << 10, CPU)
    assert [tensor[0].item() for _, tensor in unpack(bucket)] == [0, 1, 2, 3]


def test_strided_and_trainable_tensors_are_packed_by_value():
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3)).t()
    (bucket,) = pack([("w", weight)], 64, CPU)
    ((_, back),) = unpack(bucket)
    assert back.tolist() == [[0, 3], [1, 4], [2, 5]]


@given(SHAPES, st.sampled_from(DTYPES))
def test_a_spec_survives_json(shape, dtype):
    spec = Spec.of("a.b", torch.empty(shape, dtype=dtype))
    assert Spec.from_json(spec.json()) == spec

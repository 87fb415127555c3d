"""The wire format: what goes in comes out, and what is no message is a WireError whatever the bytes."""

import json
import random

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_trainer.transport.wire import LARGEST, WireError, decode, encode

repeatable = settings(derandomize=True, deadline=None)

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
]
shapes = st.lists(st.integers(0, 4), max_size=3)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda n: n not in ("_", "__metadata__")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def array(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@repeatable
@given(
    st.dictionaries(names, st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4),
    st.dictionaries(st.text(), json_values, max_size=3),
    st.booleans(),
)
def test_round_trip(layout, header, compress):
    sent = {name: array(shape, dtype) for name, (shape, dtype) in layout.items()}
    arrays, received = decode(encode(sent, header, compress=compress))
    assert received == header
    assert arrays.keys() == sent.keys()
    for name, x in sent.items():
        assert arrays[name].dtype == x.dtype
        assert arrays[name].shape == x.shape
        assert torch.equal(arrays[name].float(), x.float())


def test_nothing_at_all():
    assert decode(encode({})) == ({}, {})


def test_bits_survive():
    x = torch.tensor([0.1, -0.0, float("inf"), float("nan"), 1e-45])
    received = decode(encode({"x": x}))[0]["x"]
    assert torch.equal(received.view(torch.int32), x.view(torch.int32))


def test_views_gradients_and_one_tensor_under_two_names():
    x = torch.arange(6.0, requires_grad=True)
    sent = {"x": x, "again": x, "part": x[1:4], "transposed": x.reshape(2, 3).T, "expanded": x[:1].expand(3)}
    arrays, _ = decode(encode(sent))
    assert {name: a.tolist() for name, a in arrays.items()} == {name: a.tolist() for name, a in sent.items()}


def test_a_header_larger_than_safetensors_allows():
    """safetensors limits its own header to 100 MB; a step's rows, ids or reasons may exceed that."""
    header = {"ids": ["x" * (1 << 20)] * 101}
    assert decode(encode({}, header))[1] == header


PARTS = {"tokens": torch.arange(5), "scores": torch.tensor([[0.5], [2.0]])}, {"step": 3, "names": ["a", "b"]}
MESSAGE = encode(*PARTS)
COMPRESSED = encode(*PARTS, compress=True)


def decodes_or_is_a_wire_error(data: bytes) -> None:
    try:
        arrays, header = decode(data)
    except WireError:
        return
    assert isinstance(header, dict)
    assert all(isinstance(a, torch.Tensor) for a in arrays.values())


@settings(repeatable, max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(changes):
    data = bytearray(MESSAGE)
    for position, byte in changes:
        data[position] = byte
    decodes_or_is_a_wire_error(bytes(data))


@repeatable
@given(st.integers(0, len(MESSAGE)), st.integers(0, len(MESSAGE)), st.binary(max_size=20))
def test_pieces_cut_out_or_put_in(start, end, inserted):
    decodes_or_is_a_wire_error(MESSAGE[:start] + inserted + MESSAGE[end:])


@repeatable
@given(st.binary(max_size=200))
def test_any_bytes(data):
    decodes_or_is_a_wire_error(data)


@pytest.mark.parametrize("size", range(0, len(MESSAGE), 7))
def test_truncated(size):
    with pytest.raises(WireError, match=f"not a message of named arrays \\({size} bytes\\)"):
        decode(MESSAGE[:size])
    with pytest.raises(WireError, match="not a message of named arrays"):
        decode(COMPRESSED[:size][:-1])


def mutated(message: bytes, draw: random.Random) -> bytes:
    """Bytes changed, cut out, put in, or doubled; the ends of numbers more often than others."""
    data = bytearray(message)
    for _ in range(draw.randint(1, 3)):
        at, length = draw.randrange(len(data) + 1), draw.randint(0, 12)
        piece = draw.choice((draw.randbytes(length), bytes(length), b"\xff" * length, bytes(data[:length])))
        match draw.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at : at + length] = piece
            case 2:
                data[at:at] = piece
            case _:
                del data[at : at + length]
    return bytes(data)


@pytest.mark.parametrize("message", [MESSAGE, COMPRESSED], ids=["plain", "compressed"])
def test_mutated_messages_by_the_thousand(message):
    draw, refused = random.Random(0), 0
    for _ in range(5000):
        data = mutated(message, draw)
        try:
            arrays, header = decode(data)
        except WireError:
            refused += 1
            continue
        assert isinstance(header, dict)
        assert all(isinstance(a, torch.Tensor) for a in arrays.values())
        if message is COMPRESSED:  # its checksum covers every byte of the content
            assert header == PARTS[1]
            assert all(torch.equal(arrays[name], array) for name, array in PARTS[0].items())
    assert refused > 2000


def test_a_message_that_shrinks_and_one_that_claims_too_much():
    tokens = {"tokens": torch.arange(2000) % 97}
    small = encode(tokens, compress=True)
    assert len(small) < len(encode(tokens)) / 4
    assert torch.equal(decode(small)[0]["tokens"], tokens["tokens"])
    with pytest.raises(WireError, match="at most 1000 are accepted"):
        decode(small, 1000)
    bomb = zstandard.ZstdCompressor().compress(bytes(LARGEST + 1))
    assert len(bomb) < 200_000
    with pytest.raises(WireError, match=rf"it claims {LARGEST + 1} bytes when decompressed; at most"):
        decode(bomb)
    stream = zstandard.ZstdCompressor().compressobj()
    endless = stream.compress(MESSAGE) + stream.flush()
    with pytest.raises(WireError, match="it claims no size"):
        decode(endless)


def handmade(layout: object, data: bytes = b"") -> bytes:
    head = json.dumps(layout).encode()
    return len(head).to_bytes(8, "little") + head + data


def with_header(header: bytes, dtype: str = "U8", shape: list[int] | None = None) -> bytes:
    size = len(header) // (4 if dtype == "F32" else 1)
    return handmade(
        {"_": {"dtype": dtype, "shape": shape or [size], "data_offsets": [0, len(header)]}}, header
    )


@pytest.mark.parametrize(
    "data",
    [
        with_header(b"[1]"),
        with_header(b"{"),
        with_header(b""),
        with_header(b'{"x": "\xff"}'),
        with_header(b"[" * 100_000),
        with_header(b"{}  ", "F32"),
        with_header(b"{}", shape=[1, 2]),
        handmade({"x": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, b"12"),
        handmade({"x": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
        handmade({"x": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}),
        handmade({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        b'{"json": "but no message"}',
        (2**63).to_bytes(8, "little") + b"{}",
    ],
)
def test_made_to_break_it(data):
    with pytest.raises(WireError):
        decode(data)

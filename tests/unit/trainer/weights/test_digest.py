import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.weights.buckets import Bucket, Spec
from rlhf_trainer.weights.digest import CHUNK, STEP, Digest

ROW = CHUNK // 8 + STEP  # words in a row of the key
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def digest(*buckets: Bucket) -> str:
    made = Digest()
    for bucket in buckets:
        made.update(bucket)
    return made.hexdigest()


def bucket(raw: bytes, name: str = "w") -> Bucket:
    return Bucket((Spec(name, "uint8", (len(raw),)),), torch.frombuffer(bytearray(raw), dtype=torch.uint8))


def raw_bytes(n: int, seed: bytes = b"") -> bytes:
    return hashlib.shake_256(seed).digest(n)


@cache
def key() -> bytes:
    return hashlib.shake_256(b"rlhf weights digest 1").digest(8 * ROW)


def by_hand(raw: bytes, name: str) -> str:
    """The definition, in Python's integers, of one bucket that fits a chunk."""

    def signed(data: bytes, word: int) -> int:
        return int.from_bytes(data[4 * word : 4 * word + 4], "little", signed=True)

    def wrapped(value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31

    half = len(raw) // 8
    lanes = b""
    for shift in (0, STEP):
        total = sum(
            wrapped(signed(raw, i) + signed(key(), i + shift))
            * wrapped(signed(raw, half + i) + signed(key(), ROW + i + shift))
            for i in range(half)
        )
        lanes += (total % 2**64).to_bytes(8, "little")
    table = json.dumps([[name, "uint8", [len(raw)]]]).encode() + b"\n"
    return hashlib.sha256(hashlib.sha256(table).digest() + lanes).hexdigest()


@given(st.integers(1, 40).flatmap(lambda n: st.binary(min_size=16 * n, max_size=16 * n)))
def test_is_what_it_is_defined_to_be(raw):
    assert digest(bucket(raw)) == by_hand(raw, "w")


@pytest.mark.parametrize("device", DEVICES)
def test_is_the_same_on_every_device_and_across_chunks(device):
    raw = raw_bytes(CHUNK + CHUNK // 2 + 48)
    there = Bucket(bucket(raw).specs, bucket(raw).data.to(device))
    assert digest(there) == "14bef035609bf75b14b7700833fcbfb92c15b70c7f81fef9bd01943904f78b73"


KERNEL = """
import torch
from rlhf_trainer.weights.digest import STEP, _keys, _nh
from rlhf_trainer.weights.kernels import nh
chunk = 1 << 13
words = torch.randint(-(2**31), 2**31, (2 * chunk + 1020,)).to(torch.int32)
expected = torch.stack([_nh(part) for part in words.split(chunk)])
assert torch.equal(nh(words, _keys(words.device), chunk, STEP), expected)
"""


@pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(), reason="no Triton, or it is compiled here"
)
def test_the_gpu_s_kernel_computes_the_same():
    subprocess.run([sys.executable, "-c", KERNEL], env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)


@given(st.data())
def test_any_change_of_bytes_changes_it(data):
    raw = bytearray(data.draw(st.binary(min_size=64, max_size=64)))
    before = digest(bucket(raw))
    changed = bytearray(raw)
    for at in data.draw(st.lists(st.integers(0, 511), min_size=1, max_size=4, unique=True)):
        changed[at // 8] ^= 1 << (at % 8)
    assert digest(bucket(changed)) != before


@given(st.data())
def test_two_words_changing_places_change_it(data):
    words = data.draw(st.lists(st.binary(min_size=4, max_size=4), min_size=16, max_size=16, unique=True))
    before = digest(bucket(b"".join(words)))
    i, j = data.draw(st.lists(st.integers(0, 15), min_size=2, max_size=2, unique=True))
    words[i], words[j] = words[j], words[i]
    assert digest(bucket(b"".join(words))) != before


@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 31])
def test_every_chunk_counts(at):
    raw = bytearray(2 * CHUNK + 32)
    before = digest(bucket(raw))
    raw[at] = 1
    assert digest(bucket(raw)) != before


def test_equal_chunks_changing_places_with_others_change_it():
    first, second = raw_bytes(CHUNK, b"1"), raw_bytes(CHUNK, b"2")
    assert digest(bucket(first + second)) != digest(bucket(second + first))


def test_names_dtypes_shapes_and_order_count():
    data = torch.arange(64, dtype=torch.uint8)

    def named(*specs: Spec) -> str:
        return digest(Bucket(specs, data))

    base = named(Spec("a", "float32", (4, 2)), Spec("b", "float32", (8,)))
    assert named(Spec("a", "float32", (2, 4)), Spec("b", "float32", (8,))) != base
    assert named(Spec("a", "int32", (4, 2)), Spec("b", "float32", (8,))) != base
    assert named(Spec("b", "float32", (4, 2)), Spec("a", "float32", (8,))) != base
    assert digest(bucket(bytes(16), "a"), bucket(bytes(16), "b")) != digest(
        bucket(bytes(16), "b"), bucket(bytes(16), "a")
    )

"""Binary frames of responses: what goes in comes out, and what is none is refused with what is wrong."""

import random
import struct
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_trainer.tensors.expert_rows import ExpertsShape
from rlhf_trainer.transport.frame_reader import FrameReader, RequestFailed
from rlhf_trainer.transport.frames import (
    MOST_TOKENS,
    NO_VERSION,
    Frame,
    Kind,
    encode,
    encode_error,
)


def read(*parts: bytes) -> list[Frame]:
    reader = FrameReader()
    frames = [frame for part in parts for frame in reader.feed(part)]
    reader.close()
    return frames


def test_frames_come_whole_however_they_are_cut_into_packets():
    rng = random.Random(0)
    expected, sent = [], b""
    for number in range(50):
        tokens = [rng.randrange(1 << 31) for _ in range(rng.randrange(40))]
        logprobs = array("f", [-rng.expovariate(1) for _ in tokens])
        expected.append((number, Kind(number % 4), 3 * number, tokens, logprobs))
        sent += encode(number, Kind(number % 4), 3 * number, tokens, logprobs)
    cuts = sorted(rng.sample(range(len(sent)), 200))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    frames = read(*parts)
    assert [(f.response, f.kind, f.version, list(f.tokens), f.logprobs) for f in frames] == expected, (
        "bit for bit"
    )
    assert read(sent) == frames


def test_the_bytes_are_the_same_on_every_machine():
    sent = encode(2, Kind.STOP, 515, [1, 258], [-0.5, 0.0])
    header = "10000000 02000000 01000000 02000000 03020000"
    assert sent == bytes.fromhex(f"{header} 01000000 02010000 000000bf 00000000")


def test_a_sampling_mask_comes_with_its_tokens_for_four_bytes_each_and_one_count():
    masks = [[7], [], [1, 2]]
    sent = encode(1, Kind.LENGTH, 0, [5, 6, 8], [-0.5] * 3, masks)
    assert len(sent) == 20 + 3 * 12 + 3 * 4
    (frame,) = read(sent)
    assert (list(frame.tokens), list(frame.counts), list(frame.kept)) == ([5, 6, 8], [1, 0, 2], [7, 1, 2])
    (plain,) = read(encode(1, Kind.LENGTH, 0, [5], [-0.5]))
    assert not plain.counts
    assert not plain.kept
    with pytest.raises(ValueError, match="1 tokens with 1 log-probabilities and 2 sampling masks"):
        encode(0, Kind.TOKENS, 0, [6], [-0.5], [[], []])


def test_more_tokens_than_one_frame_takes_are_several_whose_last_says_the_end():
    count = 2 * MOST_TOKENS + 1
    frames = read(encode(0, Kind.LENGTH, 7, range(count), [-0.5] * count))
    assert [frame.kind for frame in frames] == [Kind.TOKENS, Kind.TOKENS, Kind.LENGTH]
    assert {frame.version for frame in frames} == {7}
    assert [token for frame in frames for token in frame.tokens] == list(range(count))


SHAPE = ExpertsShape(layers=2, chosen=1, experts=8)


def with_rows(*parts: bytes, most: int = 2 * MOST_TOKENS) -> list[Frame]:
    reader = FrameReader(experts=SHAPE, most_experts=most)
    return [frame for part in parts for frame in reader.feed(part)]


def test_experts_come_with_the_tokens_that_they_go_before():
    """Of a prompt of three tokens and the first of two tokens; then of both."""
    rows = np.arange(10, dtype=np.uint8).reshape(5, 2, 1) % 8
    first = encode(1, Kind.TOKENS, 0, [5, 6], [-0.5] * 2, experts=rows[:4])
    frames = with_rows(first + encode(1, Kind.STOP, 0, [7], [-0.5], experts=rows[4:]))
    assert [list(frame.tokens) for frame in frames] == [[5, 6], [7]]
    assert [np.concatenate(frame.experts).tolist() for frame in frames] == [
        rows[:4].tolist(),
        rows[4:].tolist(),
    ]
    assert [len(row) for row in frames[0].ending(1).experts] == [3]


def test_experts_of_more_tokens_than_one_frame_takes_are_several():
    count = 2 * MOST_TOKENS + 1
    rows = np.zeros((count + 3, 2, 1), dtype=np.uint8)
    frames = with_rows(encode(0, Kind.LENGTH, 7, range(count), [-0.5] * count, experts=rows))
    assert [sum(map(len, frame.experts)) for frame in frames] == [MOST_TOKENS + 3, MOST_TOKENS, 1]


def test_experts_without_tokens_are_bounded():
    """Each of few bytes, of any number of responses."""
    sent = [struct.pack("<IIIIi", 2, index, Kind.EXPERTS, 1, -1) + bytes(2) for index in range(4)]
    assert with_rows(*sent, most=4) == []
    with pytest.raises(ValueError, match="experts of 4 tokens before a frame; at most 3"):
        with_rows(*sent, most=3)


@pytest.mark.parametrize(
    ("size", "says"), [(3, "3 bytes and 1 rows of experts, of 2 bytes each"), (1 << 30, "of 2 bytes each")]
)
def test_experts_of_another_shape_are_refused(size, says):
    with pytest.raises(ValueError, match=says):
        with_rows(header(size, Kind.EXPERTS))
    with pytest.raises(ValueError, match="rows of experts, that were not asked for"):
        read(header(2, Kind.EXPERTS))


def header(size: int, number: int, count: int = 1, version: int = 0) -> bytes:
    return struct.pack("<IIIIi", size, 0, number, count, version)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"data: {}\n\ndata: {}\n\n", "unknown kind of frame: [0-9]+"),
        (
            header(8 * MOST_TOKENS + 8, 0, MOST_TOKENS + 1),
            "32776 bytes and 4097 tokens; one of TOKENS has at most",
        ),
        (header(1 << 20, 0), "one of TOKENS has at most 1036"),
        (header(1 << 20, 4, 0), "one of ERROR has at most"),
        (header(9, 0), "cannot hold 1 tokens"),
        (header(4, 0), "cannot hold 1 tokens"),
        (
            header(16, 0) + struct.pack("<ifii", 1, -0.5, 2, 7),
            "a sampling mask of 1 tokens does not match its counts",
        ),
        (header(12, 0) + struct.pack("<ifi", 1, -0.5, -1), "does not match its counts"),
        (header(16, 0) + struct.pack("<ifii", 1, -0.5, 1, -7), "-7 is not a token id"),
        (header(8, 0) + struct.pack("<if", -1, -0.5), "-1 is not a token id"),
        (header(8, 0) + struct.pack("<if", 1, float("nan")), "not finite"),
        (header(8, 0) + struct.pack("<if", 1, float("-inf")), "not finite"),
        (header(8, 0) + struct.pack("<if", 1, 0.5), "0.5 is not a log-probability"),
        (header(8, 0) + b"1234", "ended 24 bytes into a frame"),
        (header(8, 0, 1, NO_VERSION) + struct.pack("<if", 1, -0.5), "1 tokens of no weight version"),
        (header(2, 4, 0) + b"{}", "an ERROR frame without a valid message"),
    ],
)
def test_what_is_no_frame_is_refused(sent, says):
    with pytest.raises(ValueError, match=says):
        read(sent)


VALID = encode(1, Kind.LENGTH, 3, [5, 6, 8], [-0.5] * 3, [[7], [], [1, 2]]) + encode_error(400, "too long")
PLACE = st.integers(0, len(VALID) - 1)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(PLACE, st.integers(0, 255)), max_size=4), PLACE, st.binary(max_size=40))
def test_whatever_comes_is_frames_or_refused(changes, cut, more):
    """Never another error, and never more tokens than came."""
    data = bytearray(VALID)
    for place, value in changes:
        data[place] = value
    sent = bytes(data[:cut]) + more
    try:
        frames = read(sent)
    except (ValueError, RequestFailed):
        return
    assert 8 * sum(len(frame.tokens) for frame in frames) <= len(sent)


def test_an_error_is_raised_with_its_code_however_long_its_text():
    for text in ("too long", "\x00" * 100_000, "\U0001f600" * 100_000):
        with pytest.raises(RequestFailed) as caught:
            read(encode(0, Kind.TOKENS, 0, [1], [-0.5]), encode_error(400, text))
        assert caught.value.code == 400
        assert text.startswith(str(caught.value))


def test_each_token_needs_its_log_probability():
    with pytest.raises(ValueError, match="1 tokens with 0 log-probabilities"):
        encode(0, Kind.TOKENS, 0, [6], [])

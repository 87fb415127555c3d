"""Frames of what vLLM puts out, with its own types."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.logprobs import FlatLogprobs, Logprob
from vllm.outputs import CompletionOutput

from rlhf_trainer.engines.vllm.front.experts import TakenExperts
from rlhf_trainer.engines.vllm.front.streams import encoded, sampled_from
from rlhf_trainer.transport.frame_reader import FrameReader
from rlhf_trainer.transport.frames import NO_VERSION, Asked, Kind


def step(*entries: tuple[int, float]) -> dict[int, Logprob]:
    """Log-probabilities of one step as vLLM gives them: of the sampled token, then of the likeliest of all."""
    return {token: Logprob(logprob, rank=1) for token, logprob in entries}


def test_the_tokens_that_truncation_kept_are_those_with_a_probability():
    half, left_out = math.log(0.5), -math.inf
    flat = FlatLogprobs()
    flat.append(step((5, half), (4, half), (9, left_out)))  # two are kept of three that are asked for
    flat.append_fast([7, 7, 1, 2], [0.0, 0.0, left_out, left_out], iter((1, 1, 2, 3)), [None] * 4)
    third = math.log(0.25)
    flat.append(
        step((3, third), (1, third), (2, third), (8, third))
    )  # not among the three likeliest: four tie
    output = CompletionOutput(0, "", [5, 7, 3], None, flat, finish_reason=None)
    logprobs, kept_tokens = sampled_from(output, 3)
    assert kept_tokens == [[4], [], [1, 2, 8]]
    assert logprobs == [half, 0.0, pytest.approx(third)]


def test_of_tokens_that_tie_beyond_the_bound_the_rest_is_renormalised():
    flat = FlatLogprobs()
    flat.append(step((5, math.log(0.5)), (4, math.log(0.25))))  # and another with 0.25, which did not come
    output = CompletionOutput(0, "", [5], None, flat, finish_reason=None)
    logprobs, kept_tokens = sampled_from(output, 2)
    assert kept_tokens == [[4]]
    assert logprobs == [pytest.approx(math.log(2 / 3))]


@given(
    versions=st.lists(st.integers(0, 3), max_size=40),
    sizes=st.lists(st.integers(0, 9)),
    masked=st.booleans(),
    ahead=st.booleans(),
)
def test_each_token_of_a_response_comes_once_with_the_version_that_sampled_it(versions, sizes, masked, ahead):
    """However its tokens are divided into versions and into parts to be sent, and whether versions are known already of
    tokens that wait to be sent (`ahead`)."""
    runs = [(version, len(list(same))) for version, same in groupby(versions)]
    starts = [
        (version, end - count)
        for (version, count), end in zip(runs, accumulate(c for _, c in runs), strict=True)
    ]
    cuts = [end for end in accumulate(sizes) if end < len(versions)]
    parts = list(zip([0, *cuts], [*cuts, len(versions)], strict=True))
    reader, frames = FrameReader(), []
    for begin, end in parts:
        kind = Kind.LENGTH if (begin, end) == parts[-1] else Kind.TOKENS
        known = [start for start in starts if ahead or start[1] < end] or [(NO_VERSION, 0)]
        tokens, masks = range(begin, end), [range(place % 3) for place in range(begin, end)]
        sent = encoded(4, kind, known, begin, tokens, [-float(t) for t in tokens], masks if masked else None)
        frames += reader.feed(sent)
    reader.close()
    assert [token for frame in frames for token in frame.tokens] == list(range(len(versions)))
    assert [-logprob for frame in frames for logprob in frame.logprobs] == list(range(len(versions)))
    assert [frame.version for frame in frames for _ in frame.tokens] == versions
    assert [count for frame in frames for count in frame.counts] == [
        p % 3 for p in range(len(versions) * masked)
    ]
    assert [frame.kind for frame in frames] == [Kind.TOKENS] * (len(frames) - 1) + [Kind.LENGTH]
    assert {frame.response for frame in frames} == {4}


class Engine:
    """As much of vLLM's as knows the response number 0 to a request, of which it has read tokens up to `read`."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(request_index=0, routed_experts_chunks=[])
        self.output_processor = SimpleNamespace(
            request_states={"a": self.state}, external_req_ids={"name": ["a"]}
        )

    def reads(self, *tokens: int) -> None:
        self.state.routed_experts_chunks.append(rows_of(tokens))

    def output(self, *tokens: int, end: str | None = None) -> CompletionOutput:
        """At its end vLLM returns all that nobody took."""
        chunks = self.state.routed_experts_chunks
        whole = np.concatenate(chunks) if end and chunks else None
        return CompletionOutput(0, "", tokens, None, None, routed_experts=whole, finish_reason=end)


def rows_of(tokens: Iterable[int]) -> np.ndarray:
    return np.array([*tokens], dtype=np.uint8).reshape(-1, 1, 1)


def test_experts_go_with_the_token_after_theirs_however_far_the_engine_is():
    engine, prompt = Engine(), (1, 2, 3)
    taken = TakenExperts(engine, "name", request_of(prompt, experts_from=0))
    engine.reads(1, 2, 3)
    assert taken.take(engine.output(4)).flatten().tolist() == [1, 2, 3]
    engine.reads(4)
    engine.reads(5)  # of which token 6 came, too late for this output
    assert taken.take(engine.output(5)).flatten().tolist() == [4]
    assert taken.take(engine.output(6)).flatten().tolist() == [5]
    engine.reads(6)
    assert taken.take(engine.output(7, end="stop")).flatten().tolist() == [6]


@pytest.mark.parametrize(("begin", "expected"), [(2, [3]), (None, None)])
def test_only_experts_that_were_asked_for_are_taken(begin, expected):
    engine = Engine()
    engine.reads(3)  # of which alone vLLM returns them
    rows = TakenExperts(engine, "name", request_of((1, 2, 3), experts_from=begin)).take(engine.output(4))
    assert (rows if rows is None else rows.flatten().tolist()) == expected


def test_an_interrupted_response_has_those_that_came():
    engine = Engine()
    taken = TakenExperts(engine, "name", request_of((1, 2), experts_from=0))
    engine.reads(1, 2)
    assert taken.take(engine.output(3, 4, end="abort")).flatten().tolist() == [1, 2]


def request_of(prompt: Sequence[int], experts_from: int | None) -> Asked:
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_tokens": 0, "max_tokens": 9}
    more = {"stop_token_ids": (), "stream_interval": 1, "experts_from": experts_from}
    return Asked(prompt=prompt, **settings, **more)

"""Responses of a snapshot that belong to no episode yet: bytes that hold them exactly."""

from array import array

import torch

from rlhf_trainer.rollout.in_flight.saved_responses import decode, encode
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.tensors.records import Outcome, Prompt
from rlhf_trainer.tensors.sampling_mask import WHOLE
from rlhf_trainer.transport import wire


def test_a_blob_holds_whole_and_begun_responses_exactly():
    whole = Response(array("i", [5, 6]), array("f", [-0.25, -0.5]), array("i", [3, 4]), "stop")
    works = [
        PartialRollout(Prompt("0/1", (1,), {}), [whole, Response()]),
        PartialRollout(
            Prompt("1/0", (2,), {}), [Response(array("i", [7]), array("f", [-1.5]), array("i", [4]))]
        ),
    ]
    exactly(works)
    masked = Response(array("i", [9]), array("f", [-0.5]), array("i", [4]))
    masked.add(array("i", [7, 8]), array("f", [-0.5, 0.0]), 5, array("i", [2, 0]), array("i", [1, 3]))
    assert masked.kept_counts == array("i", [WHOLE, 2, 0]), "the first one is of a run without masks"
    exactly([PartialRollout(Prompt("0/2", (1,), {}), [masked, masked.copy()])])


def test_a_blob_holds_episodes_whole_and_begun():
    """One that has ended, one in its second turn, one that could not be scored, and one still in its first turn."""
    first = Response(array("i", [7]), array("f", [-1.5]), array("i", [4]))
    second = first.copy()
    second.add_context(array("i", [90, 91]))
    whole = second.copy()
    whole.add(array("i", [8]), array("f", [-0.5]), 5)
    whole.finish("stop")
    whole.outcome = Outcome(1.25, 2, ((0, 0.25), (3, 1.0)))
    broken = second.copy()
    broken.finish("length")
    broken.outcome = Outcome(0.0, 1, problem="the environment raised ValueError")
    exactly([PartialRollout(Prompt("0/2", (1,), {}), [whole, second, first, broken])])
    masked = second.copy()
    masked.add(array("i", [8]), array("f", [-0.5]), 5, array("i", [1]), array("i", [3]))
    exactly([PartialRollout(Prompt("0/2", (1,), {}), [masked])])
    branched = [each.copy() for each in (second, whole)]
    for each in branched:
        each.add_context(array("i", [1, 2]), branch=True)
    exactly([PartialRollout(Prompt("0/2", (1,), {}), [first, *branched])])


def test_a_blob_of_an_earlier_release_is_read():
    """Of 0.1.0: no flags of sampled tokens, no prompts, and of a response its length and its end alone."""
    arrays = {
        "tokens": torch.tensor([5, 6, 7], dtype=torch.int32),
        "logprobs": torch.tensor([-0.25, -0.5, -1.5]),
        "versions": torch.tensor([3, 4, 4], dtype=torch.int32),
    }
    (work,) = decode(wire.encode(arrays, {"works": [["0/1", [[2, "stop"], [1, None]]]]}))
    whole, begun = work.responses
    assert whole == Response(array("i", [5, 6]), array("f", [-0.25, -0.5]), array("i", [3, 4]), "stop")
    assert begun == Response(array("i", [7]), array("f", [-1.5]), array("i", [4]))


def test_a_blob_of_a_job_without_an_environment_is_as_it_was():
    arrays, header = wire.decode(
        encode(
            [
                PartialRollout(
                    Prompt("0/1", (1,), {}), [Response(array("i", [5]), array("f", [-0.5]), array("i", [3]))]
                )
            ]
        )
    )
    assert {*arrays} == {"tokens", "logprobs", "versions", "prompts"}
    assert header == {"works": [["0/1", [[1, None]]]], "prompts": [1]}


def exactly(works: list[PartialRollout]) -> None:
    decoded = decode(encode(works))
    assert [(w.prompt, w.responses) for w in decoded] == [(w.prompt, w.responses) for w in works]
    assert decode(encode([])) == []

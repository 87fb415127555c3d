"""Responses of several turns: what the environment replied is beside what the policy sampled, and apart from it."""

import json
import math
from array import array

import pytest
import torch
from tests.support.forked.forks import run_ranks

from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.rollout.responses import Collected, collected, pack
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Outcome, Prompt, Rollout
from rlhf_trainer.tensors.sampling_mask import WHOLE

PROMPTS = [Prompt(f"0/{i}", (i + 1,) * (i + 1), {}) for i in range(2)]
ALONE = Ranks(0, 1, torch.device("cpu"))
PLACES = {"0/0": 7, "0/1": 8}


def two_turns(*, masked: bool = False) -> Response:
    """Tokens 10 and 11, the reply 90, 91 and 92, and token 12, of newer weights."""
    response = Response()
    say(response, 10, 11, version=3, masked=masked)
    response.add_context(array("i", [90, 91, 92]))
    say(response, 12, version=4, masked=masked)
    response.finish("stop")
    response.outcome = Outcome(1.5, 2, ((1, 0.5), (5, 1.0)))
    return response


def say(response: Response, *tokens: int, version: int, masked: bool = False) -> None:
    logprobs = array("f", [-token / 16 for token in tokens])
    counts = array("i", [1] * len(tokens)) if masked else None
    response.add(array("i", tokens), logprobs, version, counts, array("i", [t + 100 for t in tokens]))


def one_turn(*, masked: bool = False) -> Response:
    response = Response()
    say(response, 20, 21, version=4, masked=masked)
    response.finish("length")
    return response


def rollouts(*responses: Response) -> list[Rollout]:
    works = [PartialRollout(prompt, [response]) for prompt, response in zip(PROMPTS, responses, strict=False)]
    return [rollout for work in works for rollout in work.rollouts()]


def received(*responses: Response) -> Collected:
    return collected(ALONE, 1, Responses(rollouts(*responses)), PLACES)


def test_a_reply_is_in_the_response_and_not_sampled():
    response = two_turns()
    assert list(response.tokens) == [10, 11, 90, 91, 92, 12]
    assert list(response.sampled) == [1, 1, 0, 0, 0, 1]
    assert list(response.logprobs) == [-0.625, -0.6875, 0.0, 0.0, 0.0, -0.75]
    assert list(response.versions) == [3, 3, 3, 3, 3, 4], "no older than what was sampled"
    assert not one_turn().sampled


def test_a_response_begins_with_what_was_sampled():
    with pytest.raises(ValueError, match="belongs to its prompt"):
        Response().add_context(array("i", [90]))


def test_a_frozen_copy_stays_as_it_was():
    work = PartialRollout.begin(PROMPTS[0], 1)
    say(work.responses[0], 10, version=3)
    work.responses[0].add_context(array("i", [90]))
    frozen = work.frozen()
    say(work.responses[0], 11, version=3)
    assert list(frozen.responses[0].sampled) == [1, 0]
    assert list(work.responses[0].sampled) == [1, 0, 1]


def test_columns_are_of_the_sampled_tokens_alone():
    columns = received(two_turns(), one_turn()).episode.columns
    sequences = columns.sequences
    assert sequences.row(0).tolist() == [1, 10, 11, 90, 91, 92, 12]
    assert sequences.row(1).tolist() == [2, 2, 20, 21]
    assert sequences.sampled.tolist() == [True, True, False, False, False, True, True, True]
    assert columns.lengths.tolist() == [3, 2]
    assert columns["sampled_logprobs"].tolist() == [-0.625, -0.6875, -0.75, -1.25, -1.3125]
    assert columns["versions"].tolist() == [3, 3, 4, 4, 4]


def test_rewards_of_turns_are_at_the_last_token_of_each():
    columns = received(two_turns(), two_turns()).episode.columns
    assert columns["environment_reward"].tolist() == [1.5, 1.5]
    assert columns["turns"].tolist() == [2, 2]
    assert columns["turn_rewards"].tolist() == [0.0, 0.5, 1.0, 0.0, 0.5, 1.0]


def test_an_episode_with_a_problem_has_no_reward():
    broken = two_turns()
    broken.outcome = Outcome(0.0, 1, problem="the environment raised ValueError")
    rewards = received(two_turns(), broken).episode.columns["environment_reward"].tolist()
    assert rewards[0] == 1.5
    assert math.isnan(rewards[1])


def test_a_job_without_an_environment_has_no_columns_of_one():
    columns = received(one_turn(), one_turn()).episode.columns
    assert columns.sequences.sampled is None
    assert {*columns.tokens, *columns.rows} == {"versions", "sampled_logprobs", "position", "finished"}


def test_sampling_masks_are_of_the_sampled_tokens():
    mask = received(two_turns(masked=True), one_turn()).episode.columns.sequences.kept
    assert mask.counts.tolist() == [1, 1, 1, WHOLE, WHOLE]
    assert mask.tokens.tolist() == [110, 111, 112]


def test_packed_rollouts_know_their_context_tokens():
    packed = pack(rollouts(two_turns(), one_turn()))
    assert packed.response_lengths.tolist() == [3, 2]
    assert packed.after_lengths.tolist() == [6, 2]
    assert pack(rollouts(one_turn())).sampled is None
    assert torch.equal(packed.response_columns, torch.tensor([1, 2, 6, 2, 3]))


def described(columns: Columns) -> str:
    """Every array, and its dtype."""
    sequences, kept_tokens = columns.sequences, columns.sequences.kept
    arrays = {**columns.tokens, **columns.rows, "tokens": sequences.tokens, "sampled": sequences.sampled}
    arrays |= {"lengths": sequences.lengths, "prompt_lengths": sequences.prompt_lengths}
    arrays |= {"counts": kept_tokens.counts, "kept": kept_tokens.tokens}
    return json.dumps({name: [str(each.dtype), each.tolist()] for name, each in sorted(arrays.items())})


def test_every_rank_gets_the_same_columns(tmp_path):
    expected = described(received(two_turns(masked=True), one_turn()).episode.columns)
    outputs = run_ranks(2, "tests.unit.trainer.rollout.episode_ranks", folder=tmp_path)
    assert [output.strip() for output in outputs] == [expected] * 2

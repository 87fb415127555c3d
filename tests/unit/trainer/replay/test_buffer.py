"""Replay buffer: which episodes are kept, replayed and stored; and the checks of a sampler's result."""

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.manifests import job
from tests.unit.trainer.replay.made import FLAGS, episode, same, with_replies, words

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.own_algorithm import resolve
from rlhf_api.sections.replay import Replay
from rlhf_trainer.replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from rlhf_trainer.replay.samplers import EpisodeSampler
from rlhf_trainer.replay.table import Episode, decode
from rlhf_trainer.tensors.columns import Columns


def filled(replay: Replay, episodes: int = 5) -> ReplayBuffer:
    buffer = ReplayBuffer(replay, words)
    for number in range(1, episodes + 1):
        buffer.add(episode(number), step=number)
    return buffer


THREE = filled(Replay(maxReplayEpisode=3))


def numbers(buffer: ReplayBuffer) -> list[int]:
    return [episode_buffer.episode_id for episode_buffer in buffer.replayable()]


def made(buffer: ReplayBuffer, pending: Episode | None = None) -> dict[str, bytes]:
    return {name: make() for name, make in buffer.blobs(pending).items()}


def stored(buffer: ReplayBuffer) -> list[int]:
    return [decode(data).number for _, data in sorted(made(buffer).items())]


@pytest.mark.parametrize(
    ("window", "offset", "replayed", "retained"),
    [
        (0, 0, [], [5]),
        (1, 0, [5], [5]),
        (3, 0, [3, 4, 5], [3, 4, 5]),
        (-1, 0, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        (-1, 4, [4, 5], [4, 5]),
        (3, 5, [5], [5]),
        (3, 9, [], [5]),
    ],
)
def test_first_in_first_out(window, offset, replayed, retained):
    buffer = filled(Replay(maxReplayEpisode=window, replayEpisodeOffset=offset))
    assert numbers(buffer) == replayed
    assert stored(buffer) == retained, "the newest is always there to be read"


def test_a_rank_whose_blobs_are_not_stored_keeps_what_it_replays_alone():
    for window, retained in ((0, []), (2, [1, 2])):
        buffer = ReplayBuffer(Replay(maxReplayEpisode=window), words, stored=False)
        for number in (1, 2):
            buffer.add(episode(number), step=number)
        assert stored(buffer) == retained
        buffer.restore(made(filled(Replay(maxReplayEpisode=window), 2)))
        assert stored(buffer) == retained


def test_it_survives_a_checkpoint_with_what_was_not_trained_on():
    replay = Replay(maxReplayEpisode=2)
    before, pending = filled(replay), episode(6)
    blobs = made(before, pending)
    assert list(blobs) == [f"episodes/0000000{n}.parquet" for n in (4, 5, 6)]
    after = ReplayBuffer(replay, words)
    restored = after.restore(blobs)
    assert restored is not None
    assert (restored.number, restored.trained) == (6, None)
    assert same(restored.columns, pending.columns)
    assert numbers(after) == [4, 5]
    assert made(after, restored) == blobs, "the same bytes: nothing is uploaded twice"
    picks = [(5, 1), (4, 3), (5, 0), (5, 1)]
    assert same(after.columns(picks), before.columns(picks))
    assert after.restore(made(filled(replay, 3))) is None
    assert numbers(after) == [2, 3], "restoring again forgets what was there"


def test_an_episode_that_is_none_is_named():
    with pytest.raises(ValueError, match=r"episodes/00000001.parquet: not an episode's Parquet table"):
        ReplayBuffer(Replay(), words).restore({"episodes/00000001.parquet": b"PAR1"})


@given(st.lists(st.tuples(st.integers(3, 5), st.integers(0, 3)), min_size=1, max_size=12))
def test_picks_come_in_their_order(picks):
    columns = THREE.columns(picks)
    for at, (number, index) in enumerate(picks):
        mine = columns.select(torch.tensor([at]))
        assert same(mine, episode(number).columns.select(torch.tensor([index])))


def test_samples_say_what_they_are_and_cannot_be_written():
    sample = EpisodeReplayBuffer(episode(3), words).buffer[2]
    made = episode(3).columns.select(torch.tensor([2]))
    assert (sample["episode"], sample["index"], sample["prompt_id"]) == (3, 2, "0/14")
    assert sample["advantages"].tolist() == made["advantages"].tolist()
    assert sample["prompt"].split() == [str(token) for token in sample["prompt_tokens"].tolist()]
    assert sample["reward"] == float(made["scores"][0])
    with pytest.raises(ValueError, match="read-only"):
        sample["advantages"][0] = 0.0


def picks(replay: Replay, step: int = 9, seed: int = 0) -> list[tuple[int, int]]:
    buffer = filled(replay)
    return EpisodeSampler(replay, seed).picks(
        buffer.replayable(), EpisodeReplayBuffer(episode(6), words), step
    )


def test_nothing_is_replayed_unless_asked_for():
    assert picks(Replay()) == []
    assert picks(Replay(replaySampleFn="no.such:function")) == [], "nor is it imported"


@pytest.mark.parametrize("name", ["uniform", "newest", "prioritized"])
def test_built_in_samplers_repeat_themselves_and_no_answer(name):
    replay = Replay(maxReplayEpisode=3, replaySampleFn=name)
    picked = picks(replay)
    assert picked == picks(replay)
    assert len(picked) == len(set(picked)) == 4, "as many as the step's own"
    assert {number for number, _ in picked} <= {3, 4, 5}
    assert len(picks(replay.model_copy(update={"samples_per_step": 7}))) == 7
    assert len(picks(replay.model_copy(update={"samples_per_step": 99}))) == 12, "all there are"


def test_uniform_takes_from_all_of_the_window_by_seed_and_step():
    replay = Replay(maxReplayEpisode=-1, samplesPerStep=2)
    picked = [tuple(picks(replay, step)) for step in range(60)]
    assert {number for pair in picked for number, _ in pair} == {1, 2, 3, 4, 5}
    assert len(set(picked)) > 30
    assert picks(replay, 0, seed=1) != picks(replay, 0)


def test_newest_takes_the_newest():
    picked = picks(Replay(maxReplayEpisode=3, replaySampleFn="newest", samplesPerStep=6))
    assert Counter(number for number, _ in picked) == {5: 4, 4: 2}


def test_prioritized_prefers_large_advantages():
    buffer = ReplayBuffer(Replay(maxReplayEpisode=1), words)
    made = episode(1)
    made.columns["advantages"][:] = 0.01
    made.columns["advantages"][:3] = -5.0  # the first answer
    buffer.add(made, 1)
    replay = Replay(maxReplayEpisode=1, replaySampleFn="prioritized", samplesPerStep=1)
    fresh = EpisodeReplayBuffer(episode(2), words)
    counts = Counter(
        EpisodeSampler(replay, 0).picks(buffer.replayable(), fresh, step)[0][1] for step in range(200)
    )
    assert counts[0] > 180


def everything(episode_replay_buffers):
    """The example of the reference document."""
    buffers = []
    for replay_buffer in episode_replay_buffers:
        buffers += replay_buffer.buffer
    return buffers


def best_of_each(episode_replay_buffers):
    return [max(b.buffer, key=lambda sample: sample["reward"]) for b in episode_replay_buffers]


def raises(_buffers):
    return [1 / 0]


def writes(buffers):
    buffers[0].buffer[0]["advantages"][:] = 0
    return buffers[0].buffer


def nothing_at_all(_buffers):
    return None


def texts(buffers):
    return [sample["response"] for sample in buffers[0].buffer]


def others(_buffers):
    return [{"episode": 1, "index": 0}]


def strangers(_buffers):
    return [{"prompt": "?"}]


def sampled_by(name: str) -> list[tuple[int, int]]:
    return picks(Replay.model_validate({"maxReplayEpisode": 2, "replaySampleFn": f"{__name__}:{name}"}))


def test_a_function_of_the_user_sees_the_window_and_the_fresh_episode():
    assert sampled_by("everything") == [(number, i) for number in (4, 5) for i in range(4)]
    assert [number for number, _ in sampled_by("best_of_each")] == [4, 5]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"the function raised ZeroDivisionError: division by zero \(.*test_buffer.py:\d+\)"),
        ("writes", "the function raised ValueError: assignment destination is read-only"),
        ("nothing_at_all", "returned a NoneType, not a list of samples"),
        ("texts", r"returned a list with a str, not of samples \(dictionaries\)"),
        ("others", "returned response 0 of episode 1, which is in none of its buffers"),
        ("strangers", "not a sample of its buffers: its `episode` and `index` are null and null"),
        ("no_such_function", "cannot be imported"),
    ],
)
def test_whatever_else_it_does_is_one_clear_error(name, says):
    with pytest.raises(InvalidJob, match=says) as caught:
        sampled_by(name)
    assert [p.where for p in caught.value.problems] == ["spec.replay.replaySampleFn"]
    assert not re.search("\n", str(caught.value))


def test_priorities_that_an_algorithm_of_ones_own_does_not_compute_are_refused():
    """The built-in prioritized sampler draws by advantages, which this algorithm does not have."""
    own = ("spec.ppo={}", "spec.algorithm=examples.own_algorithm.best_of_n:ALGORITHM")
    resolve(job(*own, "spec.replay={maxReplayEpisode: 2}").spec)
    message = (
        r"spec.replay.replaySampleFn: .* which the graph of 'examples.own_.*' does not compute; use uniform"
    )
    with pytest.raises(InvalidJob, match=message):
        resolve(job(*own, "spec.replay={maxReplayEpisode: 2, replaySampleFn: prioritized}").spec)


def test_samplers_get_what_was_sampled_and_the_replies_apart():
    """So that the mean of a token column is that of what the policy chose."""
    made = with_replies(episode(3))
    sample = EpisodeReplayBuffer(made, words).buffer[3]
    own = made.columns.select(torch.tensor([3]))
    assert len(sample["response_tokens"]) == 5
    assert sample["sampled"].tolist() == list(FLAGS[3])
    assert sample["advantages"].tolist() == own["advantages"].tolist()
    assert (sample["turns"], sample["environment_reward"]) == (2, float(own["environment_reward"][0]))
    assert not {"sampled", "turns"} & EpisodeReplayBuffer(episode(3), words).buffer[3].keys()


def test_episodes_with_and_without_replies_are_replayed_together():
    """Those that happened to have one turn each have no flags of their tokens."""
    buffer = ReplayBuffer(Replay(maxReplayEpisode=2), words)
    one_turn = with_replies(episode(3))
    alone = replace(one_turn.columns.sequences.select(torch.tensor([1, 2])), sampled=None)
    rows = one_turn.columns.select(torch.tensor([1, 2]))
    buffer.add(replace(one_turn, columns=replace(rows, sequences=alone)), step=3)
    fresh = with_replies(episode(4))
    assert [each.episode_id for each in buffer.find_joinable(fresh.columns)] == [3]
    joined = Columns.join([fresh.columns, buffer.columns([(3, 1)])])
    assert joined.sequences.sampled.tolist() == [flag for row in (*FLAGS, FLAGS[2]) for flag in row]
    assert len(joined["turn_rewards"]) == int(joined.lengths.sum())

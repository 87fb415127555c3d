"""Responses of an episode that are kept for people."""

from dataclasses import replace

import pytest
import torch
from tests.unit.trainer.replay.made import episode, with_replies, words

from rlhf_trainer.replay import samples
from rlhf_trainer.replay.samples import choose_samples, describe_samples


def test_all_responses_to_the_first_prompts_are_chosen():
    whole = episode(3)
    first = whole.prompt_ids[0]
    chosen = choose_samples(whole, 1)
    assert set(chosen.prompt_ids) == {first}
    assert len(chosen) == whole.prompt_ids.count(first)
    assert len(choose_samples(whole, 99)) == len(whole)
    assert len(choose_samples(whole, 0)) == 0


def test_a_sample_has_its_text_and_figures():
    whole = replace(episode(3), rewards={"format": torch.tensor([1.0, torch.nan, 0.5, 0.0])})
    columns, lengths = whole.columns, whole.columns.sequences.response_lengths.tolist()
    described = describe_samples(3, whole, words)
    assert [each.prompt_id for each in described] == list(whole.prompt_ids)
    assert [each.score for each in described] == columns["scores"].tolist()
    assert [each.rewards for each in described] == [{"format": score} for score in (1.0, None, 0.5, 0.0)]
    assert [each.response_length for each in described] == lengths
    assert [len(each.response.split()) for each in described] == lengths
    advantages = [float(each.mean()) for each in columns["advantages"].split(lengths)]
    assert [each.advantage for each in described] == pytest.approx(advantages)
    assert [each.finished for each in described] == columns["finished"].tolist()


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(samples, "TEXT_CHARACTERS", 4)
    assert {len(each.response) for each in describe_samples(3, episode(3), words)} == {4}


def test_a_sample_of_an_episode_tells_its_turns_apart():
    whole = with_replies(episode(3))
    described = describe_samples(3, whole, words)
    last = described[3]
    assert [turn.by for turn in last.turns] == ["policy", "environment", "policy"]
    assert " ".join(turn.text for turn in last.turns) == last.response
    assert [len(turn.text.split()) for turn in last.turns] == [1, 2, 2]
    assert [turn.reward for turn in last.turns] == [None, None, 1.0]
    assert [turn.reward for turn in described[0].turns] == [0.5, None, None]
    assert last.response_length == 3, "what was sampled"
    assert [each.turns for each in describe_samples(3, episode(3), words)] == [()] * 4


def test_a_sample_whose_thought_was_closed_shows_what_closed_it():
    whole = with_replies(episode(3))
    tokens = {name: each for name, each in whole.columns.tokens.items() if name != "turn_rewards"}
    described = describe_samples(3, replace(whole, columns=replace(whole.columns, tokens=tokens)), words)
    assert [turn.by for turn in described[3].turns] == ["policy", "given", "policy"]
    assert () in [each.turns for each in described], "of one that was not closed"


def test_the_turns_of_a_long_episode_are_cut_together(monkeypatch):
    monkeypatch.setattr(samples, "TEXT_CHARACTERS", 8)
    turns = describe_samples(3, with_replies(episode(3)), words)[3].turns
    assert sum(len(turn.text) for turn in turns) == 8

"""Responses of an episode that are kept for people."""

import pytest
from tests.unit.trainer.replay.made import episode, words

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
    whole = episode(3)
    columns, lengths = whole.columns, whole.columns.sequences.response_lengths.tolist()
    described = describe_samples(whole, words)
    assert [each["prompt_id"] for each in described] == list(whole.prompt_ids)
    assert [each["score"] for each in described] == columns["scores"].tolist()
    assert [each["response_length"] for each in described] == lengths
    assert [len(each["response"].split()) for each in described] == lengths
    advantages = [float(each.mean()) for each in columns["advantages"].split(lengths)]
    assert [each["advantage"] for each in described] == pytest.approx(advantages)
    assert [each["finished"] for each in described] == columns["finished"].tolist()


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(samples, "TEXT_CHARACTERS", 4)
    assert {len(each["response"]) for each in describe_samples(episode(3), words)} == {4}

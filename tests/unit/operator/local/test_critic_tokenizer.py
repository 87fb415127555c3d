"""Tokenizers that `rlhf validate` compares: a critic reads the policy's token ids."""

import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.spec import Spec
from rlhf_operator.local.models import critic_from_policy, critic_problems

POLICY = {"the": 0, "film": 1, "th": 2}
MERGES = ["t h", "th e"]


@pytest.fixture
def saved(tmp_path):
    def save(name: str, vocab: object, merges: object = MERGES, added: object = ()) -> str:
        folder = tmp_path / name
        folder.mkdir()
        tokens = [{"content": content, "id": place} for content, place in dict(added).items()]
        made = {"model": {"type": "BPE", "vocab": vocab, "merges": merges}, "added_tokens": tokens}
        (folder / "tokenizer.json").write_text(json.dumps(made))
        return str(folder)

    return save


CASES = [
    ("equal", (POLICY,), True),
    ("with a token more", (POLICY, MERGES, {"[PAD]": 3}), True),
    ("with merges written as pairs", (POLICY, [merge.split() for merge in MERGES]), True),
    ("with other ids", ({"the": 1, "film": 0, "th": 2},), False),
    ("without a token", ({"the": 0, "th": 2},), False),
    ("with other merges", (POLICY, ["t h"]), False),
]


def spec(**model: str) -> Spec:
    return job(f"spec.model={json.dumps(model)}").spec


@pytest.mark.parametrize(("tokens", "same"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_critic_with_other_tokens_is_refused_and_one_from_such_a_reward_model_said(saved, tokens, same):
    policy, other = saved("policy", POLICY), saved("other", *tokens)
    named = spec(policy=policy, critic=other)
    problems = [str(problem) for problem in critic_problems(named)]
    reason = "has another tokenizer than the policy, and would read its tokens as others"
    assert problems == ([] if same else [f"spec.model.critic: {reason}; got {other!r}"])
    scored = spec(policy=policy, reward=other)
    assert list(critic_problems(scored)) == []
    line = f"the critic starts from the policy: the tokenizer of {other} is another"
    assert critic_from_policy(scored) == (None if same else line)


def test_tokenizers_that_are_not_there_are_not_compared(saved, tmp_path):
    policy = saved("policy", POLICY)
    Path(tmp_path, "unread").mkdir()
    for name in ("org/critic", str(tmp_path / "unread")):
        assert list(critic_problems(spec(policy=policy, critic=name))) == []
        assert critic_from_policy(spec(policy=policy, reward=name)) is None

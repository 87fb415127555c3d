"""Tokenizers that `rlhf validate` compares: a critic and a reference read the policy's token ids."""

import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.spec import Spec
from rlhf_operator.local.preflight.models import critic_from_policy, tokenizer_problems

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
    ("equal", (POLICY,), ""),
    ("with a token more", (POLICY, MERGES, {"[PAD]": 3}), ""),
    ("with merges written as pairs", (POLICY, [merge.split() for merge in MERGES]), ""),
    (
        "with other ids",
        ({"the": 1, "film": 0, "th": 2},),
        "'the' is token 0 of the policy, and token 1 of this model",
    ),
    ("without a token", ({"the": 0, "th": 2},), "'film' is token 1 of the policy, and none of this model"),
    ("with other merges", (POLICY, ["t h"]), "their merges differ"),
]


def spec(**model: str) -> Spec:
    return job(f"spec.model={json.dumps(model)}").spec


@pytest.mark.parametrize(
    ("tokens", "difference"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_critic_with_other_tokens_is_refused_and_one_from_such_a_reward_model_said(
    saved, tokens, difference
):
    policy, other = saved("policy", POLICY), saved("other", *tokens)
    named = spec(policy=policy, critic=other)
    problems = [str(problem) for problem in tokenizer_problems(named)]
    reason = "has another tokenizer than the policy, and would read its tokens as others"
    assert problems == ([f"spec.model.critic: {reason}: {difference}; got {other!r}"] if difference else [])
    scored = spec(policy=policy, reward=other)
    assert list(tokenizer_problems(scored)) == []
    line = f"the critic starts from the policy: the tokenizer of {other} is another"
    assert critic_from_policy(scored) == (line if difference else None)


def test_a_critic_whose_reward_model_scores_parts_is_said_to_start_from_the_policy():
    models = "spec.model={policy: org/policy, reward: org/reward}"
    line = critic_from_policy(job(models, "spec.reward.fineGrained=true").spec)
    assert line is not None
    assert line.startswith(
        "the critic starts from the policy: org/reward scores parts of a response (spec.reward.fine"
    )
    assert critic_from_policy(job(models).spec) is None
    assert (
        critic_from_policy(job("spec.model={policy: org/policy}", "spec.environment.path=a:b").spec) is None
    )


def test_tokenizers_that_are_not_there_are_not_compared(saved, tmp_path):
    policy = saved("policy", POLICY)
    Path(tmp_path, "unread").mkdir()
    for name in ("org/critic", str(tmp_path / "unread")):
        assert list(tokenizer_problems(spec(policy=policy, critic=name))) == []
        assert critic_from_policy(spec(policy=policy, reward=name)) is None


@pytest.mark.parametrize(
    ("tokens", "difference"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_teacher_with_other_tokens_is_refused_with_the_first_that_differs(saved, tokens, difference):
    policy, other = saved("policy", POLICY), saved("other", *tokens)
    taught = ("spec.algorithm=distillation", "spec.ppo={}", "spec.sampling={responsesPerPrompt: 8}")
    named = job(*taught, f"spec.model={json.dumps({'policy': policy, 'reference': other})}").spec
    reason = "has another tokenizer than the policy, and would read its tokens as others"
    problems = [str(problem) for problem in tokenizer_problems(named)]
    assert problems == (
        [f"spec.model.reference: {reason}: {difference}; got {other!r}"] if difference else []
    )


def test_each_teacher_is_compared_and_the_one_with_other_tokens_named(saved):
    policy, same, other = saved("policy", POLICY), saved("same", POLICY), saved("other", {"the": 0, "th": 2})
    teachers = [{"name": "a", "model": same}, {"name": "b", "model": other}]
    named = job(
        *("spec.algorithm=distillation", "spec.ppo={}", "spec.reward={}", "spec.sampling={}"),
        f"spec.distillation={json.dumps({'minibatchSize': 8, 'teachers': teachers})}",
        f"spec.model={json.dumps({'policy': policy})}",
    ).spec
    (problem,) = map(str, tokenizer_problems(named))
    assert problem.startswith("spec.distillation.teachers[b].model: has another tokenizer than the policy")
    assert problem.endswith(f"'film' is token 1 of the policy, and none of this model; got {other!r}")

"""Updates of equally many tokens: what `balanceTokens` asks for is what every update of both models gets."""

from statistics import pstdev

import pytest
from tests.unit.trainer.training.running import Job, resumed_is_whole

SETTINGS = "minibatchSize: 8, epochs: 2"
ENDS = "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p"
STEP = (
    "spec.data.promptsPerStep=8",
    f"spec.sampling={{maxNewTokens: 40, responsesPerPrompt: 4, stop: [{ENDS}]}}",
)
"""Responses of a random model: most of them end early, some are cut off."""


def tokens(algorithm: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Response tokens of each update of a step, by model."""
    run, lengths = Job(algorithm, settings, *STEP, refer=None), dict[str, list[int]]()
    for name, model in run.models.items():
        own = model.update

        def update(sequences, *more, name=name, own=own):
            lengths.setdefault(name, []).append(int(sequences.response_lengths.sum()))
            return own(sequences, *more)

        monkeypatch.setattr(model, "update", update)
    run.steps(0, 1)
    return lengths


def test_updates_of_policy_and_critic_have_equally_many_tokens(monkeypatch):
    random = tokens("ppo", SETTINGS, monkeypatch)
    balanced = tokens("ppo", f"{SETTINGS}, valueMinibatchSize: 16, balanceTokens: true", monkeypatch)
    assert [len(balanced[name]) for name in ("policy", "critic")] == [8, 4]
    assert sum(random["policy"]) == sum(balanced["policy"]) == sum(balanced["critic"])
    assert pstdev(balanced["policy"]) < pstdev(random["policy"]) / 3, (balanced, random)
    assert max(balanced["critic"]) - min(balanced["critic"]) <= 2


def test_a_run_with_them_goes_on_exactly():
    resumed_is_whole(lambda: Job("grpo", f"{SETTINGS}, balanceTokens: true", *STEP), stop=1, end=3)

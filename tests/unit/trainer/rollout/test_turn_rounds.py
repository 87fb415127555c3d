"""Episodes whose turns the trainer samples: in rounds, cut to what an episode may have, and refused by prompt."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.unit.trainer.rollout.test_turns import DATA, END, ENDS, GAMES, TOKENIZER, ids, prompt

from rlhf_api.host.event_loop import EventLoop
from rlhf_api.sections.environment import Environment
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.local_generation.sampler import NOTHING, Sampled
from rlhf_trainer.rollout.clients.turn_rounds import TurnRounds
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt

NONE = torch.zeros(0, dtype=torch.int32)


class Script:
    """Samples the n-th text of a script in each episode's n-th turn, which is told by the environment's replies."""

    def __init__(self, *turns: str, masks: bool = False) -> None:
        self.turns, self.masks = turns, masks
        self.batches: list[list[Prompt]] = []
        self.most: list[int] = []

    def __call__(self, prompts: Sequence[Prompt], most: int) -> list[Sampled]:
        self.batches.append([*prompts])
        self.most.append(most)
        return [self._turn(each, most) for each in prompts]

    def _turn(self, each: Prompt, most: int) -> Sampled:
        number = TOKENIZER.decode(each.tokens).count("assistant") - 1
        tokens = torch.tensor([*ids(self.turns[min(number, len(self.turns) - 1)]), END][:most])
        counts = torch.full((len(tokens),), 2, dtype=torch.int32) if self.masks else NONE
        masked = tokens.int().repeat_interleave(2) if self.masks else NONE
        return Sampled(tokens, torch.full((len(tokens),), -0.5), counts, masked, finished=True)


@contextmanager
def rounds(name: str = "Guess", **fields: Any) -> Iterator[TurnRounds]:
    section = Environment(**{"path": f"{GAMES}:{name}", "workers": 1, **fields})
    loop, pool = EventLoop("environments"), WorkerPool(section)
    try:
        loop.run(pool.start())
        rendering = Rendering(TOKENIZER, DATA, ENDS, StopStrings(TOKENIZER, ()), pool.schemas)
        yield TurnRounds(Environments(section, rendering, pool), loop, threading.Event())
    finally:
        loop.run(pool.close())
        loop.close()


def works(count: int, responses: int = 2, **row: Any) -> list[PartialRollout]:
    return [PartialRollout.begin(prompt(number, **row), responses) for number in range(count)]


def test_a_round_samples_a_turn_of_each_episode_that_goes_on():
    script, played = Script("1", "5"), works(3)
    played[2].prompt.row["secret"] = 1
    with rounds() as each:
        assert each.play(played, script, 12, version=7) == {}
    assert [len(batch) for batch in script.batches] == [6, 4]
    rewards = [[r.outcome.reward for r in work.responses if r.outcome] for work in played]
    assert rewards == [[1.25] * 2, [1.25] * 2, [1.0] * 2]
    first = played[0].responses[0]
    assert set(first.versions) == {7}
    assert first.end == "stop"
    assert TOKENIZER.decode([t for t, s in zip(first.tokens, first.sampled, strict=True) if not s]).count(
        "Higher."
    )


def test_no_more_episodes_go_on_at_once_than_may_live():
    script, played = Script("1", "5"), works(3)
    with rounds(parallel=4) as each:
        each.play(played, script, 12, version=0)
    assert [len(batch) for batch in script.batches] == [4, 4, 2, 2]
    assert all(r.outcome and r.outcome.reward == 1.25 for work in played for r in work.responses)


def test_a_turn_is_cut_to_the_tokens_that_its_episode_has_left_with_its_mask():
    (whole,), (work,), script = works(1, 1), works(1, 1), Script("1", "7" * 30, masks=True)
    with rounds() as each:
        each.play([whole], Script("1", "5"), 12, version=0)
    reply = whole.responses[0].sampled.count(0)
    with rounds(maxTokens=2 + reply + 5) as each:
        each.play([work], script, 12, version=0)
    (response,) = work.responses
    assert response.end == "length"
    assert len(response.tokens) == 2 + reply + 5
    assert script.most == [12, 5]
    counts = [count for count, own in zip(response.kept_counts, response.sampled, strict=True) if own]
    assert counts == [2] * sum(response.sampled)
    assert len(response.kept) == 2 * len(counts)


def test_a_prompt_that_opens_no_episode_is_refused_and_the_others_are_played():
    script, played = Script("5"), works(2)
    played[1].prompt.row["secret"] = "x"
    with rounds() as each:
        refused = each.play(played, script, 12, version=0)
    assert list(refused) == [played[1].prompt.id]
    assert "reset raised ValueError" in refused[played[1].prompt.id]
    assert all(r.outcome and r.outcome.reward == 1.0 for r in played[0].responses)


@pytest.mark.parametrize("at", ["sampling", "replying"])
def test_a_run_that_is_to_stop_waits_for_no_episode(at: str, tmp_path):
    """Not for an environment either that never replies."""
    played = works(1, hold=str(tmp_path))
    with rounds("Waits", writable=(str(tmp_path),)) as each:

        def sample(prompts: Sequence[Prompt], most: int) -> list[Sampled]:
            if at == "sampling":
                each._stop.set()
                return [NOTHING] * len(prompts)
            threading.Timer(0.2, each._stop.set).start()
            return Script("1")(prompts, most)

        assert each.play(played, sample, 12, version=0) == {}
    assert not any(response.end for response in played[0].responses)

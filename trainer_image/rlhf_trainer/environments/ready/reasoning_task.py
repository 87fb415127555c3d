"""Asks one task of reasoning-gym in an episode, and judges each answer with the task's own `score_answer`."""

from collections.abc import Mapping
from typing import Any

from ..step import Step
from .row_seed import seed_of

try:
    import reasoning_gym
    from reasoning_gym.utils import extract_answer
except ImportError as error:
    raise ImportError(f"reasoning-gym is missing; run `pip install reasoning-gym` ({error})") from error

AGAIN = "That is not the answer. Try again."


class ReasoningTask:
    """An answer is what stands in a turn's last `<answer>` tags, or else the whole turn. Of several `tries` the best
    counts: a turn's reward is what its score exceeds the best one before by."""

    def __init__(self, *, task: str, tries: int = 1, **settings: Any) -> None:
        """`task`: its name, such as `word_ladder`; `settings`: its own."""
        self._task, self._tries, self._settings = task, tries, settings
        self._best = 0.0

    def reset(self, row: Mapping[str, Any]) -> str:
        tasks = reasoning_gym.create_dataset(self._task, **self._settings, seed=seed_of(row), size=1)
        self._score_answer, self._entry = tasks.score_answer, tasks[0]
        return str(self._entry["question"])

    def step(self, message: Mapping[str, Any]) -> Step:
        text = message["content"]
        answer = extract_answer(text)
        score = self._score(text.strip() if answer is None else answer)
        self._tries -= 1
        gain, self._best = max(0.0, score - self._best), max(score, self._best)
        return Step(AGAIN, gain, done=score >= 1.0 or self._tries <= 0)

    def _score(self, answer: str) -> float:
        try:
            return float(self._score_answer(answer, self._entry))
        except MemoryError:
            raise
        except Exception:  # some tasks parse the answer, and raise for what is none
            return 0.0

"""Held-out prompts over time: the responses to each one that the evaluations have kept, step after step."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from ...local.records import workdir
from ..folder.run_folder import RunFolder

_MOST_LINES = 1000
"""The newest, each an evaluation of one set."""
_MOST_PROMPTS = 256
_LONGEST = 20_000
"""Characters of a text."""


def list_evaluations(run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}/evaluations`: the newest response first."""
    prompts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in reversed(deque(run.lines(workdir.EVALUATIONS), _MOST_LINES)):
        for name, prompt, response in _read_samples(line):
            if (name, prompt) in prompts or len(prompts) < _MOST_PROMPTS:
                prompts.setdefault((name, prompt), []).append(response)
    return {
        "prompts": [
            {"set": name, "prompt": prompt, "responses": responses}
            for (name, prompt), responses in prompts.items()
        ]
    }


def _read_samples(line: bytes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The set, the prompt and the response of each sample; none of a line that is not an evaluation's."""
    try:
        figures = from_json(line)
    except ValueError:
        return
    if not isinstance(figures, dict):
        return
    step, samples = figures.get("step"), figures.get("samples")
    for sample in samples if isinstance(samples, list) and isinstance(step, int) else ():
        if not isinstance(sample, Mapping):
            continue
        prompt, answer = _read_prompt(sample.get("prompt")), sample.get("answer")
        if prompt and isinstance(answer, str):
            score = sample.get("score")
            response = {
                "step": step,
                "response": answer[:_LONGEST],
                "score": score if type(score) in (int, float) else None,
            }
            yield str(figures.get("set")), prompt, response


def _read_prompt(prompt: object) -> str:
    """A text, or the last message of a conversation; empty for anything else."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    return prompt[:_LONGEST] if isinstance(prompt, str) else ""

"""The files that `rlhf init` writes: a manifest, rows to begin with, a reward function and its test; pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.alias_generators import to_camel

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.field_types import RowKind
from rlhf_api.job import API_VERSION, KIND
from rlhf_api.manifest.experiments import of_algorithm
from rlhf_api.manifest.includes import merge
from rlhf_api.sections.optimizer import Optimizer

from ..console.commented import commented

RESPONSES = 64
"""Responses of a step, and rows of one that trains on given responses."""
STEPS, PROMPT_TOKENS, RESPONSE_TOKENS = 20, 512, 128
_STRENGTHS = {
    "kl_coefficient": "raise it if the policy drifts off; 0 needs no reference model",
    "beta": "lower lets the policy go further from where it started",
}
"""Settings of algorithms that hold the policy near its start, with comments."""

_TAUGHT = "weight of the teacher, if there is a reward too (spec.reward.functions)"
TAUGHT = ("distillation",)
"""Algorithms whose reference is a teacher, which the user names."""

SMALL, SMALL_RATE = 1e8, 1e-4
"""Models with fewer parameters need a learning rate that is a hundred times as high as that of others."""


def manifest(
    file: str,
    algorithm: str,
    *,
    model: str,
    data: str,
    fields: Sequence[str],
    columns: Mapping[str, str],
    reward: Mapping[str, Any],
    teacher: str | None,
    samples: bool,
    positions: int | None,
    is_small: bool,
    has_gpu: bool,
) -> str:
    """The manifest's text. `teacher`: of an algorithm in `TAUGHT`; `samples`: the algorithm samples responses;
    `fields`: of the rows in `data`; `columns`: by the fields that they are read as; `reward`: what scores responses,
    parts of `spec`; empty where nothing does; `positions`: of the model, if known, which prompt and response have to
    fit; `is_small`: it is known to be far from a billion parameters."""
    prompt_tokens = PROMPT_TOKENS if positions is None else max(1, min(PROMPT_TOKENS, positions // 2))
    response_tokens = RESPONSE_TOKENS if positions is None else max(1, min(RESPONSE_TOKENS, positions // 2))
    experiment = of_algorithm(algorithm)
    usual, rate = experiment["spec"], SMALL_RATE if is_small else Optimizer().learning_rate
    group = usual.get("sampling", {}).get("responsesPerPrompt", 1)
    spec: dict[str, Any] = {
        "algorithm": algorithm,
        "steps": STEPS,
        "model": {
            "policy": model,
            **({"reference": teacher} if teacher else {}),
            **({} if has_gpu else {"dtype": "float32"}),
        },
        "data": {
            "train": [data],
            **({"columns": {**columns}} if columns else {}),
            "maxPromptLength": prompt_tokens,
            "promptsPerStep": RESPONSES // group,
        },
    }
    if samples:
        spec["sampling"] = {"responsesPerPrompt": group, "maxNewTokens": response_tokens}
    else:
        spec["data"]["maxResponseLength"] = prompt_tokens
        del spec["data"]["promptsPerStep"]  # 64, too
    settings = ALGORITHMS[algorithm].settings
    strength = next((name for name in _STRENGTHS if settings and name in settings.model_fields), None)
    section, comments = to_camel(algorithm), _comments(experiment["metadata"]["name"], fields, group)
    if settings and strength:
        spec[section] = {to_camel(strength): getattr(settings(), strength)}
        comments[f"spec.{section}.{to_camel(strength)}"] = _TAUGHT if teacher else _STRENGTHS[strength]
    spec = merge(merge({**spec, "optimizer": {"learningRate": rate}}, usual), reward)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": experiment["metadata"], "spec": spec}
    head = f"`rlhf run {file}` trains here, `rlhf submit {file}` on a cluster; `rlhf plan {file}` predicts its needs"
    return f"# {head}\n{commented(document, comments)}"


def _comments(name: str, fields: Sequence[str], group: int) -> dict[str, str]:
    rows = f"rows with {', '.join(fields)}" if fields else "rows"
    return {
        "metadata.name": f"the results go to runs/{name}",
        "spec.steps": "enough for a first look; a few hundred are usual",
        "spec.model.policy": "a folder in Hugging Face format, or a name of the hub",
        "spec.model.reference": "the teacher, with the tokenizer of the policy",
        "spec.model.dtype": "as there is no GPU here; bfloat16, the default, on one",
        "spec.data.train": f"{rows}; several files may be listed",
        "spec.data.columns": "which column is read as which field",
        "spec.data.maxPromptLength": "in tokens; longer ones are refused",
        "spec.data.maxResponseLength": "in tokens; longer ones are refused",
        "spec.data.promptsPerStep": f"with responsesPerPrompt, {RESPONSES} responses a step",
        "spec.sampling.responsesPerPrompt": "which are compared with each other" if group > 1 else "",
        "spec.sampling.maxNewTokens": "longer responses are cut off",
        "spec.model.reward": "scores the responses",
        "spec.reward.functions": "their scores are added; weight, program and url are further fields",
        "spec.optimizer.learningRate": "try three times higher, and lower, before anything else",
    }


def sample_rows(kind: RowKind) -> str:
    """Rows of a kind, as JSONL: sums of two digits."""
    rows: list[dict[str, Any]] = []
    for a, b in ((a, b) for a in range(8) for b in range(8)):
        prompt, right, wrong = f"{a} + {b} =", f" {a + b}", f" {a + b + 1}"
        made: dict[RowKind, dict[str, Any]] = {
            "prompts": {"prompt": prompt, "answer": right.strip()},
            "responses": {"prompt": prompt, "answer": right},
            "pairs": {"prompt": prompt, "chosen": right, "rejected": wrong},
            "labeled": {"prompt": prompt, "answer": right if b % 2 else wrong, "label": b % 2 == 1},
            "stepwise": {
                "prompt": prompt,
                "steps": [f" {a} + {b} = {b} + {a}", f"= {a + b if b % 2 else a + b + 1}"],
                "labels": [True, b % 2 == 1],
            },
        }
        rows.append(made[kind])
    return "".join(json.dumps(row) + "\n" for row in rows)


def reward_function(name: str, target: str | None) -> str:
    """A module with a reward function that looks for the field `target` of the row in its response, or without one
    scores the length of the response."""
    if target is None:
        about, score, each = (
            "1 for 20 words, less for more or fewer",
            "1 / (1 + abs(len(response.split()) - 20))",
            "response in responses",
        )
    else:
        about = f"1 for a response that has the {target} of its row, less 0.001 for each character"
        score = f"(str(row[{json.dumps(target)}]) in response) - len(response) / 1000"
        each = "response, row in zip(responses, rows, strict=True)"
    return f'''"""A reward to begin with: compute another score, and change its test with it."""


def {name}(prompts, responses, rows):
    """{about}."""
    return [
        {score}
        for {each}
    ]
'''


def reward_test(module: str, name: str, target: str | None) -> str:
    """A module with a test of that function."""
    row = {"prompt": "2 + 3 =", **({} if target is None else {target: "5"})}
    good, bad = ("word " * 20, "word") if target is None else (" 5", " 6")
    return f'''"""Tries the reward without a model, by `python` with this file or by `python -m pytest`."""

from {module} import {name}

ROW = {json.dumps(row)}


def test_a_good_response_scores_more_than_a_bad_one():
    good, bad = {name}([ROW["prompt"]] * 2, [{json.dumps(good)}, {json.dumps(bad)}], [ROW] * 2)
    assert good > bad


if __name__ == "__main__":
    test_a_good_response_scores_more_than_a_bad_one()
'''

"""Every leaf of the manifest's schema changes the run that is made of it, or is refused under its own name."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny.models import tiny_model
from tests.support.tiny.vision import tiny_vision, write_rows
from tests.unit.api.manifests import document
from tests.unit.manifest_fields import calls, control, host, models
from tests.unit.manifest_fields.places import REFUSED, changed, keys, leaves, overrides, value, values

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import parse

View = Callable[[RLHFJob], Any]
VIEWS: tuple[View, ...] = (*host.VIEWS, *models.VIEWS, *calls.VIEWS, *control.VIEWS, host.cluster)


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory):
    """A directory with the models and the rows that manifests here name."""
    folder: Path = tmp_path_factory.mktemp("leaves")
    for name in ("policy", "initial"):
        tiny_model(folder / name, tie=False, seed=0)
    for name in ("rows", "more"):
        rows = [
            {
                "prompt": f"{name} number {i}",
                "answer": f"one {i}",
                "chosen": f"one {i}",
                "rejected": f"two {i}",
                "steps": ["one", f"two {i}"],
                "labels": [True, False],
            }
            for i in range(5)
        ]
        kinds = {
            "prompts": ["prompt"],
            "answers": ["prompt", "answer"],
            "pairs": ["prompt", "chosen", "rejected"],
            "steps": ["prompt", "steps", "labels"],
        }
        for kind, has in kinds.items():
            lines = [json.dumps({key: row[key] for key in has}) for row in rows]
            (folder / f"{name}-{kind}.jsonl").write_text("\n".join(lines) + "\n")
    tiny_vision(folder / "vision")
    write_rows(folder).rename(folder / "rows-images.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(Path(__file__).parents[3] / "examples" / "own_algorithm"))
        yield
    for cached in (job, read_view, made):
        cached.cache_clear()


def base(at: str) -> Any:
    """A document in which the leaf acts."""
    return made(tuple(overrides(at)))


@cache
def made(given: tuple[str, ...]) -> Any:
    return document(*COMMON, *given)


COMMON = (
    "spec.model={policy: policy, reward: policy, parameters: 1e9}",
    "spec.data={train: [rows-prompts.jsonl], promptsPerStep: 8, maxPromptLength: 8, overlong: cut}",
    "spec.sampling={maxNewTokens: 5, responsesPerPrompt: 2}",
    "spec.steps=6",
    "spec.reward={}",
    "spec.generator={}",
    "spec.env={}",
    "spec.trackers=[]",
)


@cache
def job(text: str) -> RLHFJob:
    return parse(json.loads(text))


@cache
def read_view(text: str, view: View) -> str:
    try:
        return repr(view(job(text)))
    except InvalidJob as error:
        return f"said: {error}"


def outcome(at: str, schema: Any, views: Sequence[View] = VIEWS) -> str:
    """`acts: VIEW`, `refused`, or why neither was found."""
    before = base(at)
    text, wrong = json.dumps(before), list[str]()
    job(text)
    for other in values(at, schema, value(before, at)):
        after = json.dumps(changed(before, keys(at), other))
        try:
            job(after)
        except InvalidJob as error:
            if at in REFUSED and any(problem.where.startswith(at) for problem in error.problems):
                return "refused"
            wrong += [f"{other!r}: {problem}" for problem in error.problems]
            continue
        for view in views:
            if read_view(text, view) != read_view(after, view):
                return f"acts: {view.__name__}"
        wrong.append(f"{other!r} changes nothing")
    return f"nothing is seen of {at}: {wrong}"


@pytest.mark.parametrize(("at", "schema"), [pytest.param(*leaf, id=leaf[0]) for leaf in leaves()])
def test_a_leaf_acts_or_is_refused(at: str, schema: Any) -> None:
    result = outcome(at, schema)
    assert result == "refused" if at in REFUSED else result.startswith("acts: "), result


def test_a_leaf_that_no_view_sees_is_found_out():
    at = "spec.optimizer.betas"
    assert outcome(at, {}) == "acts: engines"
    assert "changes nothing" in outcome(at, {}, views=(host.pods, models.losses))

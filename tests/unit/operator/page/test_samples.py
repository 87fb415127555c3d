"""Samples by page, their histogram, and their tokens from the store."""

import io
from math import exp
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet
from tests.support.run_folders import append_lines, write_run
from tests.support.stores import fill_store
from tokenizers import Tokenizer, models

from rlhf_api.errors.problem import InvalidJob
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.refusal import Refusal


def sample(step, prompt="2+2", score=1.0, response="4", **more):
    line = {"step": step, "prompt_id": f"0/{prompt}", "prompt": prompt, "response": response, "score": score}
    return line | {"weight_version": step - 1, "prompt_length": 2, "response_length": 3} | more


LINES = [
    sample(1, response="22"),
    sample(1, response="4 <b>", score=0.0, advantage=-1.0),
    sample(1, "3+3", score=None),
    sample(2, response="four", score=0.5),
    sample(2, "3+3", score=2.0, turns=[{"by": "policy", "text": "a"}, {"by": "environment", "text": "b"}]),
]


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path)
    append_lines(tmp_path / "samples.jsonl", LINES)
    return tmp_path


def ask(folder: Path, rest: str, catalog: Catalog | None = None, **query: str):
    catalog = catalog or Catalog([folder])
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/{rest}".rstrip("/"), query)


def ids(folder, **query):
    return [each["id"] for each in ask(folder, "samples", **query)["samples"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["2.0", "2.1", "1.0", "1.1", "1.2"]),
        ({"order": "oldest", "limit": "2"}, ["1.0", "1.1"]),
        ({"order": "best"}, ["2.1", "1.0", "2.0", "1.1"]),
        ({"order": "worst", "limit": "1"}, ["1.1"]),
        ({"step": "1"}, ["1.0", "1.1", "1.2"]),
        ({"prompt": "3+3"}, ["2.1", "1.2"]),
        ({"search": "FOUR"}, ["2.0"]),
        ({"group": "1.0"}, ["1.0", "1.1"]),
        ({"low": "0.5", "high": "1"}, ["2.0", "1.0"]),
        ({"before": "1.0"}, ["1.1", "1.2"]),
        ({"before": "1.2"}, []),
    ],
)
def test_a_query_chooses_samples(folder, query, expected):
    assert ids(folder, **query) == expected


def test_pages_follow_one_another_to_the_end(folder):
    pages, cursor = [], {}
    while cursor is not None:
        reply = ask(folder, "samples", limit="2", **cursor)
        pages.append([each["id"] for each in reply["samples"]])
        cursor = {"before": reply["next"]} if reply["next"] else None
    assert pages == [["2.0", "2.1"], ["1.0", "1.1"], ["1.2"]]
    assert (reply["count"], reply["steps"]) == (5, [1, 2])


def test_new_samples_are_read_and_a_rewritten_file_is_read_anew(folder):
    catalog = Catalog([folder])
    assert ask(folder, "samples", catalog)["count"] == 5
    append_lines(folder / "samples.jsonl", [sample(3)])
    assert ask(folder, "samples", catalog, limit="1")["samples"][0]["id"] == "3.0"
    new = folder / ".new"
    append_lines(new, LINES[-2:])
    new.replace(folder / "samples.jsonl")
    assert ask(folder, "samples", catalog)["count"] == 2


@pytest.mark.parametrize(
    "query", [{"order": "random"}, {"limit": "0"}, {"step": "-1"}, {"low": "nan"}, {"before": "9.9"}]
)
def test_a_wrong_argument_is_named(folder, query):
    with pytest.raises(Refusal, match=f"{next(iter(query))} must be") as caught:
        ask(folder, "samples", **query)
    assert caught.value.status == 400


def test_turns_and_parts_are_there_as_text(folder):
    shown = {each["id"]: each for each in ask(folder, "samples")["samples"]}
    assert [turn["role"] for turn in shown["2.1"]["turns"]] == ["model", "environment"]
    assert shown["1.1"]["response"] == "4 <b>"


@pytest.mark.parametrize(
    ("query", "edges", "counts", "unscored", "steps"),
    [
        ({"bins": "2"}, [0.0, 1.0, 2.0], [2, 2], 1, [1, 2]),
        ({"step": "1", "bins": "1"}, [0.0, 1.0], [2], 1, [1, 1]),
        ({"step": "2", "prompt": "2+2"}, [0.5, 0.5], [1], 0, [2, 2]),
        ({"search": "four"}, [0.5, 0.5], [1], 0, [2, 2]),
    ],
)
def test_scores_are_counted_in_bins(folder, query, edges, counts, unscored, steps):
    reply = ask(folder, "scores", **query)
    assert (reply["edges"], reply["counts"], reply["unscored"]) == (edges, counts, unscored)
    assert (reply["samples"], reply["steps"], reply["whole"]) == (sum(counts) + unscored, steps, True)


EPISODE = {
    "prompt_id": ["0/3+3", "0/2+2", "0/2+2"],
    "response": ["4 6", "4 6", "4 6"],
    "response_tokens": [[0, 1], [0, 1], [0, 1]],
    "sampled_logprobs": [[0.0, 0.0], [-1.0, -2.0], [-3.0, 0.0]],
    "logprobs": [[0.0, 0.0], [-1.5, -2.0], [-3.0, 0.0]],
    "reference_logprobs": [[0.0, 0.0], [-1.25, -2.0], [-3.0, 0.0]],
    "advantages": [[0.0, 0.0], [0.5, 0.5], [-0.5, -0.5]],
    "sampled": [[True, True], [True, True], [True, False]],
    "weight_versions": [[1, 1], [1, 1], [1, -1]],
}


@pytest.fixture
def stored(folder):
    """A run whose checkpoint of step 2 has that step's episode."""
    append_lines(folder / "samples.jsonl", [sample(2, response="4 6", score=0.0) for _ in range(2)])
    episode = io.BytesIO()
    parquet.write_table(arrow.table(EPISODE), episode, use_dictionary=False)
    tokenizer = Tokenizer(models.WordLevel({"4": 0, " 6": 1}, unk_token="4"))
    blobs = {
        "episodes/00000002.parquet": episode.getvalue(),
        "export/policy/tokenizer.json": tokenizer.to_str().encode(),
    }
    fill_store(folder / "checkpoints", blobs, step=2)
    return folder


def test_tokens_have_the_figures_of_the_store(stored):
    first, second = ask(stored, "samples/2.2/tokens")["tokens"]
    assert (first["logprob"], first["old"], first["reference"]) == (-1.0, -1.5, -1.25)
    assert (first["ratio"], first["kl"], first["mask"], first["version"]) == (exp(-0.5), -0.25, True, 1)
    assert [each["text"].strip() for each in (first, second)] == ["4", "6"]


def test_equal_responses_have_the_tokens_of_each(stored):
    first, second = ask(stored, "samples/2.3/tokens")["tokens"]
    assert (first["logprob"], first["advantage"]) == (-3.0, -0.5)
    assert (second["mask"], second["logprob"], second["ratio"]) == (False, None, None)


def test_tokens_that_no_checkpoint_has_are_refused_with_the_reason(stored):
    with pytest.raises(InvalidJob, match="no checkpoint has the tokens of step 1"):
        ask(stored, "samples/1.0/tokens")


def test_a_run_without_a_store_has_no_tokens_and_makes_none(folder):
    with pytest.raises(Refusal, match="has no checkpoints"):
        ask(folder, "samples/1.0/tokens")
    assert not (folder / "checkpoints").exists()


def test_checkpoints_are_listed_with_what_goes_on_from_them(stored):
    (checkpoint,) = ask(stored, "")["checkpoints"]
    assert (checkpoint["step"], checkpoint["good"]) == (2, True)
    assert checkpoint["bytes"] > 0
    assert "--from-step 2" in checkpoint["clone"]
    assert str(stored) in checkpoint["export"]

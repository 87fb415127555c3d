"""All responses of a step from the Parquet table of its episode, in pages, with their tokens."""

import io
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet
from tests.support.run_folders import append_lines, write_run
from tests.support.stores import fill_store
from tests.unit.operator.page.test_samples import ask, ids, sample

from rlhf_api.errors.problem import InvalidJob
from rlhf_operator.archive import episode_file
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.refusal import Refusal

COUNT = 7


def make_columns(**more: Any) -> dict[str, Any]:
    """Responses to four prompts, two each, whose rewards fall; one has none, and one is of an environment's too."""
    rows = range(COUNT)
    return {
        "prompt_id": [f"0/{row // 2}" for row in rows],
        "prompt": [f"prompt {row // 2}" for row in rows],
        "response": [f"answer {row}" for row in rows],
        "reward": [None if row == 3 else 1.0 - row / 10 for row in rows],
        "reward/judge": [1.0 - row / 10 for row in rows],
        "finished": [row != 0 for row in rows],
        "weight_version": [8 for row in rows],
        "prompt_tokens": [[1, 2, 3]] * COUNT,
        "response_tokens": [[4, 5]] * COUNT,
        "sampled": [[True, row != 6] for row in rows],
        "sampled_logprobs": [[-float(row), -1.0] for row in rows],
        "advantages": [[0.5, 1.5]] * COUNT,
        **more,
    }


def write_table(columns: dict[str, Any]) -> bytes:
    """In row groups of three."""
    table, out = arrow.table(columns), io.BytesIO()
    parquet.write_table(table, out, use_dictionary=False, row_group_size=3)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path) -> Path:
    """Checkpoints of steps 8 and 9, each with the episodes of the last two steps; of step 9 one sample is kept."""
    write_run(tmp_path)
    append_lines(tmp_path / "samples.jsonl", [sample(9)])
    for step in (8, 9):
        blobs = {
            f"episodes/{each:08d}.parquet": write_table(make_columns(weight_version=[each - 1] * COUNT))
            for each in (step - 1, step)
        }
        fill_store(tmp_path / "checkpoints", blobs, step=step)
    return tmp_path


def list_ids(folder: Path, step: int, **query: str) -> list[str]:
    return [each["id"] for each in ask(folder, f"episodes/{step}", **query)["samples"]]


def test_the_steps_of_all_checkpoints_are_listed(folder):
    assert ask(folder, "episodes") == {"steps": [7, 8, 9]}
    assert ids(folder) == ["9.0"]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"order": "worst"}, [6, 5, 4, 2, 1, 0]),
        ({"order": "best", "limit": "2"}, [0, 1]),
        ({"before": "9.4"}, [5, 6]),
        ({"group": "9.2"}, [2, 3]),
        ({"prompt": "prompt 2"}, [4, 5]),
        ({"search": "ANSWER 5"}, [5]),
        ({"low": "0.5", "high": "0.9"}, [1, 2, 4, 5]),
    ],
)
def test_a_query_chooses_rows_of_all_row_groups(folder, query, rows):
    assert list_ids(folder, 9, **query) == [f"9.{row}" for row in rows]


def test_a_row_has_what_a_sample_has(folder):
    first, *_, last = ask(folder, "episodes/8")["samples"]
    assert (first["prompt"], first["response"], first["score"]) == ("prompt 0", "answer 0", 1.0)
    assert first["parts"] == {"judge": 1.0}
    assert (first["finished"], first["version"], first["promptTokens"]) == (False, 7, 3)
    assert (first["tokens"], first["advantage"]) == (2, 1.0)
    assert (last["tokens"], last["advantage"]) == (1, 0.5), "the environment's token is none"


def test_scores_and_tokens_are_those_of_the_episode(folder):
    scores = ask(folder, "episodes/9/scores", bins="1")
    assert (scores["counts"], scores["unscored"], scores["steps"]) == ([6], 1, [9, 9])
    tokens = ask(folder, "episodes/9.5/tokens")["tokens"]
    assert [(each["id"], each["logprob"], each["text"]) for each in tokens] == [
        (4, -5.0, "#4"),
        (5, -1.0, "#5"),
    ]


def test_one_copy_is_on_the_disk_while_it_is_used(folder, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(episode_file.tempfile, "tempdir", str(scratch))
    catalog = Catalog([folder])
    for step in (8, 9, 9):
        ask(folder, f"episodes/{step}", catalog)
        assert len(list(scratch.iterdir())) == 1
    catalog.runs()[0].forget()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("rest", ["episodes/6", "episodes/9/marks", "episodes/nine", "episodes/9.7/tokens"])
def test_what_is_not_there_is_refused(folder, rest):
    with pytest.raises(Refusal) as caught:
        ask(folder, rest)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "content",
    [b"no table", write_table({"prompt_id": ["0/1"]}), write_table(make_columns(prompt=list(range(COUNT))))],
)
def test_a_table_of_another_form_is_refused(tmp_path, content):
    write_run(tmp_path)
    fill_store(tmp_path / "checkpoints", {"episodes/00000003.parquet": content})
    with pytest.raises((Refusal, InvalidJob), match="episode"):
        ask(tmp_path, "episodes/3")


def test_an_episode_too_large_to_be_copied_is_refused_with_what_reads_it(folder, monkeypatch):
    monkeypatch.setattr(episode_file, "MOST_BYTES", 100)
    with pytest.raises(InvalidJob, match="rlhf replay show"):
        ask(folder, "episodes/9")


def test_a_run_without_a_store_has_none_and_makes_none(tmp_path):
    write_run(tmp_path)
    assert ask(tmp_path, "episodes") == {"steps": []}
    assert not (tmp_path / "checkpoints").exists()

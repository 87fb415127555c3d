"""`rlhf replay` on real stores; and what the docs show of samplers and DuckDB."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace as changed
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support import strict
from tests.unit.trainer.replay.made import FLAGS, episode, with_replies, words

from rlhf_api.host import parquet_pages
from rlhf_api.sections.replay import Replay
from rlhf_operator import cli
from rlhf_operator.archive import replay
from rlhf_operator.archive.replay import trajectory
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from rlhf_trainer.replay.samplers import EpisodeSampler
from rlhf_trainer.replay.table import encode

PAGE = (Path(__file__).parents[4] / "docs" / "concepts" / "replay.md").read_text()
REPLAY = Replay(maxReplayEpisode=2)


def fill(url: str, first: int = 1) -> None:
    """Checkpoints of steps 2 and 3, by default; the newest has episodes 2 and 3, and 4, which is not trained on yet.
    Older ones are deleted."""
    archive = Archive(url)
    committer = Committer.take_over(archive, Retention())
    ranks = Ranks(0, 1, torch.device("cpu"))
    saver = Saver(ranks, archive, committer, committed=lambda _cut: None)
    buffer = ReplayBuffer(REPLAY, words)
    for step in range(first, first + 3):
        buffer.add(episode(step), step)
        pending = episode(step + 1) if step == first + 2 else None
        saver.begin(step, {}, {"model": {"weight": torch.ones(3)}.items()}, buffer.blobs(pending))
    saver.finish()


@pytest.fixture
def store(tmp_path) -> Path:
    fill((tmp_path / "run" / "checkpoints").as_uri())
    return tmp_path / "run"


def test_ls(store, capsys):
    for named in (store, store / "checkpoints", (store / "checkpoints").as_uri()):
        assert cli.main(["replay", "ls", str(named)]) == 0
        head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
        assert head == ["EPISODE", "ANSWERS", "REWARD", "KL", "WEIGHTS", "TRAINED"]
        assert [(row[0], row[1]) for row in rows] == [("2", "4"), ("3", "4"), ("4", "4")]
        assert [" ".join(row[5:]) for row in rows] == ["in step 2", "in step 3", "not yet"]
        assert float(rows[0][2]) == pytest.approx(float(episode(2).columns["scores"].mean()), rel=1e-3)


@pytest.mark.parametrize("verb", ["ls", "show", "export"])
def test_an_episode_that_decodes_to_far_more_than_its_file_is_refused(store, monkeypatch, capsys, verb):
    """Any of these does, where nothing may be decoded."""
    monkeypatch.setattr(parquet_pages, "SMALL", 0)
    monkeypatch.setattr(parquet_pages, "_RATIO", 0)
    path = [str(store / "answers.parquet")] if verb == "export" else []
    assert cli.main(["replay", verb, str(store), *path]) == 2
    captured = capsys.readouterr()
    assert re.match(
        r"error: episodes/\d+\.parquet: is not a readable episode: would take more than 0 MiB", captured.err
    )
    assert (captured.out, "Traceback" in captured.err) == ("", False)


def test_show(store, capsys):
    assert cli.main(["replay", "show", str(store), "--limit", "5"]) == 0
    shown = capsys.readouterr().out.strip().split("\n\n")
    assert [text.split()[1] for text in shown] == ["4", "4", "4", "4", "3"], "the newest first"
    tokens = [str(token) for token in episode(4).columns.sequences.row(0).tolist()]
    head, prompt, answer = shown[0].splitlines()
    assert re.fullmatch(
        r"episode 4  prompt 0/16  reward -?[\d.]+  KL -?[\d.]+  3 tokens  weights \d  trained not yet", head
    )
    assert (prompt, answer) == (f"  {' '.join(tokens[:2])}", f"  > {' '.join(tokens[2:])}")
    assert "cut off at the limit" in shown[1]

    assert cli.main(["replay", "show", str(store), "--episode", "2", "--limit", "99"]) == 0
    assert capsys.readouterr().out.count("episode 2  ") == 4


def test_an_older_checkpoint_is_read_by_its_step(store, capsys):
    assert cli.main(["replay", "ls", str(store), "--step", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2"]
    assert cli.main(["replay", "show", str(store), "--step", "2", "--episode", "1", "--limit", "99"]) == 0
    assert capsys.readouterr().out.count("episode 1  ") == 4
    assert cli.main(["replay", "show", str(store), "--step", "7"]) == 2
    assert "holds no checkpoint of step 7, but of 2, 3" in capsys.readouterr().err


def test_episodes_of_several_turns_are_shown_and_exported_beside_others(tmp_path, capsys):
    """As where a job got an environment. What is counted is what the policy said."""
    committer = Committer.take_over(archive := Archive(tmp_path.as_uri()), Retention())
    saver = Saver(Ranks(0, 1, torch.device("cpu")), archive, committer, committed=lambda _cut: None)
    buffer = ReplayBuffer(REPLAY, words)
    buffer.add(episode(1), 1)
    buffer.add(with_replies(episode(2)), 2)
    saver.begin(2, {}, {"model": {"weight": torch.ones(3)}.items()}, buffer.blobs(None))
    saver.finish()
    assert cli.main(["replay", "show", tmp_path.as_uri(), "--limit", "8"]) == 0
    heads = [text.splitlines()[0] for text in capsys.readouterr().out.strip().split("\n\n")]
    assert ["2 tokens in 2 turns" in head for head in heads] == [True, *[False] * 7]
    assert "3 tokens in 2 turns" in heads[3]
    assert not any("turns" in head for head in heads[4:])
    for name in ("answers.parquet", "answers.jsonl"):
        assert cli.main(["replay", "export", tmp_path.as_uri(), str(tmp_path / name)]) == 0
    rows = pq.read_table(tmp_path / "answers.parquet").to_pylist()
    assert [row["sampled"] for row in rows] == [*[None] * 4, *map(list, FLAGS)]
    exported = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert [row.get("turns") for row in exported] == [*[None] * 4, 2, 1, 1, 2]


def test_show_of_a_job_without_a_reference_has_no_kl():
    row = {"episode": 2, "prompt_id": "0/16", "reward": 1.5, "kl": None, "weight_version": 3, "trained": 2}
    text = {"finished": True, "prompt": "p", "response": "r", "response_tokens": [1]}
    assert trajectory({**row, **text}).startswith("episode 2  prompt 0/16  reward 1.5  KL -  1 tokens  ")


def test_export(store, tmp_path, capsys):
    parquet, lines = tmp_path / "answers.parquet", tmp_path / "answers.jsonl"
    assert cli.main(["replay", "export", str(store), str(parquet)]) == 0
    assert capsys.readouterr().out == f"12 responses of 3 episodes of the checkpoint of step 3 in {parquet}\n"
    rows = pq.read_table(parquet).to_pylist()
    assert [row["episode"] for row in rows] == [2] * 4 + [3] * 4 + [4] * 4
    assert rows[0]["advantages"] == episode(2).columns["advantages"][:3].tolist()
    assert cli.main(["replay", "export", str(store), str(lines), "--episode", "3"]) == 0
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows[4:8]
    best = duckdb.sql(blocks("sql")[1].replace("answers.parquet", str(parquet))).fetchall()
    assert [reward for _, _, reward in best] == sorted((row["reward"] for row in rows), reverse=True)[:5]


@pytest.mark.parametrize("verb", ["ls", "show", "export"])
def test_of_a_checkpoint_that_the_run_deletes_meanwhile_the_newer_one_is_read(
    store, tmp_path, monkeypatch, capsys, verb
):
    goes_on(store, monkeypatch, steps=[4])
    path = [str(tmp_path / "answers.jsonl")] if verb == "export" else []
    assert cli.main(["replay", verb, str(store), *path]) == 0
    output = capsys.readouterr().out
    assert {
        "ls": re.findall(r"^\d+", output, flags=re.M) == ["5", "6", "7"],
        "show": re.findall(r"^episode (\d+)", output, flags=re.M) == ["7"] * 4 + ["6"],
        "export": output.startswith("12 responses of 3 episodes of the checkpoint of step 6 in "),
    }[verb], output


def test_a_run_that_deletes_faster_than_one_reads_is_named(store, tmp_path, monkeypatch, capsys):
    goes_on(store, monkeypatch, steps=[4, 7, 10])
    assert cli.main(["replay", "export", str(store), str(tmp_path / "answers.parquet")]) == 1
    assert capsys.readouterr().err == (
        f"error: {store}: the run deleted 3 checkpoints, one after the other, before they were read; keep more of "
        "them (spec.checkpoint.keepLast) or read a copy\n"
    )
    assert not list(tmp_path.glob("*answers*"))


def goes_on(store: Path, monkeypatch, steps: list[int]) -> None:
    """Between the first two episodes that are read of a checkpoint, the run makes those of the next three steps."""
    left, read, read_steps = list(steps), replay.read, []

    def reading(snapshot, *given):
        if left and snapshot.step in read_steps:
            fill((store / "checkpoints").as_uri(), left.pop(0))
        read_steps.append(snapshot.step)
        return read(snapshot, *given)

    monkeypatch.setattr(replay, "read", reading)


def test_an_export_as_lines_is_json_for_every_reader(tmp_path):
    """A diverged policy's KL is NaN."""
    made_episode = episode(2)
    diverged = made_episode.columns.with_tokens(logprobs=torch.full((11,), torch.nan))
    table = pq.read_table(pa.BufferReader(encode(changed(made_episode, columns=diverged), words)))
    replay._jsonl(iter([table]), tmp_path / "answers.jsonl")
    rows = [strict.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["kl"] for row in rows] == [None] * 4
    assert rows[0]["logprobs"] == [None] * 3


def test_episodes_of_other_settings_are_exported_with_nulls_for_the_columns_that_they_lack(tmp_path):
    """A run that went on with a reference, or without its critic."""
    later = episode(3)
    tokens = {name: column for name, column in later.columns.tokens.items() if name != "values"}
    fewer = changed(later, columns=changed(later.columns, tokens=tokens))
    for number, pair in enumerate(((episode(2), fewer), (fewer, episode(2)))):
        path = tmp_path / f"{number}.parquet"
        assert replay._parquet((pq.read_table(pa.BufferReader(encode(e, words))) for e in pair), path) == 8
        rows = {row["episode"]: row for row in pq.read_table(path).to_pylist()}
        assert rows[3]["values"] is None
        assert len(rows[2]["values"]) == len(rows[2]["advantages"]) == 5


@pytest.mark.parametrize("path", [".", "nowhere/answers.parquet"])
def test_where_an_export_cannot_go_is_told_before_anything_is_read(
    store, tmp_path, monkeypatch, capsys, path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replay, "read_checkpoint", None)
    assert cli.main(["replay", "export", str(store), path]) == 2
    assert capsys.readouterr().err == f"error: {path}: must be a file, in a directory that is there\n"


def test_it_reads_an_s3_store(seaweed, monkeypatch, capsys):
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    fill(seaweed.url("replayed"))
    assert cli.main(["replay", "ls", seaweed.url("replayed")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["2", "3", "4"]


def test_what_is_wrong_is_said_in_a_line(store, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, code, says in (
        (("ls", str(tmp_path / "nowhere")), 2, "nowhere: no such directory, and no URL of a store"),
        (("ls", "http://x/y"), 2, "cannot use http://x/y"),
        (("show", str(empty)), 2, "empty: holds no checkpoint"),
        (
            ("show", str(store), "--episode", "1"),
            2,
            "step 3: holds no episode 1; it holds 2, 3, 4 (--step N reads an older checkpoint)",
        ),
        (
            ("export", str(store), str(tmp_path / "no" / "x")),
            2,
            "must be a file, in a directory that is there",
        ),
    ):
        assert cli.main(["replay", *arguments]) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert printed.err.startswith("error: ")
        assert says in printed.err
    assert not (tmp_path / "nowhere").exists()
    for segment in (store / "checkpoints" / "segments").iterdir():
        segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    assert cli.main(["replay", "ls", str(store)]) == 1
    assert "is not what its hash says" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_kubernetes_and_says_what_it_does_need(store):
    code = """
import sys
for name in ("torch", "kubernetes", "kopf", *sys.argv[2:]):
    sys.modules[name] = None
from rlhf_operator import cli
sys.exit(cli.main(["replay", "ls", sys.argv[1]]))
"""

    def run(*absent: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(store), *absent]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)

    assert run().returncode == 0
    for absent in ("pyarrow", "obstore"):
        without = run(absent)
        assert without.returncode == 2
        assert without.stderr == (
            f"error: this command: needs {absent}, which is not installed; pip install 'rlhf-operator[store]'\n"
        )


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.S | re.M)


def test_the_docs_ask_duckdb(store):
    """Statement by statement, on the store of a run."""
    text = blocks("sql")[0].replace("runs/ppo/checkpoints/", f"{store}/checkpoints/")
    connection = duckdb.connect()
    for statement in filter(str.strip, text.split(";")):
        connection.execute(statement)
    rows = connection.fetchall()
    assert [row[:2] for row in rows] == [(2, 4), (3, 4), (4, 4)]
    assert rows[0][2] == pytest.approx(float(episode(2).columns["scores"].mean()))
    assert rows[0][4] == 11 / 4


def test_the_sampler_in_the_docs_works(tmp_path, monkeypatch):
    (tmp_path / "my_samplers.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert "replaySampleFn: my_samplers:half_best" in PAGE
    replay = Replay(maxReplayEpisode=2, replaySampleFn="my_samplers:half_best")
    buffer = ReplayBuffer(replay, words)
    for number in (1, 2):
        buffer.add(episode(number), number)
    picks = EpisodeSampler(replay, 0).picks(buffer.replayable(), EpisodeReplayBuffer(episode(3), words), 3)
    best = {n: episode(n).columns["scores"].argsort(descending=True)[:2].tolist() for n in (1, 2)}
    assert picks == [(n, i) for n in (1, 2) for i in best[n]]
    keys = set(re.findall(r"`(\w+)`", PAGE.split("| key | value |")[1].split("\n\n")[0]))
    of_episodes = set(EpisodeReplayBuffer(with_replies(episode(3)), words).buffer[0])
    assert keys == of_episodes > set(EpisodeReplayBuffer(episode(3), words).buffer[0])

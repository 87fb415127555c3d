"""`rlhf replay`: prints the episodes of a checkpoint of a run, the newest one unless told otherwise."""

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json
from rlhf_api.host.parquet_pages import check_inflation
from rlhf_api.sections.replay import EPISODES

from ..console.exits import print_line
from ..console.subcommands import Commands, add_command
from ..console.text import columns, indented
from .open_store import package, read_checkpoint
from .verify import verify

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

SHOWN = 5
"""Default number of responses that `show` prints."""
_ABOUT = ("episode", "reward", "kl", "weight_version", "trained")
_READ = ("prompt_id", "prompt", "response", "finished", "response_tokens", *_ABOUT)
_OF_EPISODES = ("sampled", "turns")
"""Columns of jobs with an environment."""

Table = Any
"""A pyarrow.Table, which has no type stubs."""


def add_replay(commands: Commands) -> None:
    replay = add_command(commands, "replay", help="read the episodes in a run's checkpoint store")
    verbs = replay.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help: str, does: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        parser = add_command(verbs, name, help=help)
        parser.add_argument(
            "store",
            metavar="STORE",
            help="URL of a checkpoint store, its directory, or a run's work directory",
        )
        parser.add_argument(
            "--step", type=int, metavar="N", help="the checkpoint of this step; default: the newest"
        )
        parser.set_defaults(does=does)
        return parser

    verb("ls", "list the episodes", ls)
    verb("verify", "repeat a step of a work directory's run, and compare what the trainer computed", verify)
    for each in (
        verb("show", "print responses with their prompts, the newest first", show),
        verb("export", "write all responses as one table", export),
    ):
        each.add_argument("--episode", type=int, metavar="N", help="only this episode")
    verbs.choices["show"].add_argument(
        "--limit", type=int, default=SHOWN, metavar="N", help=f"number of responses; default: {SHOWN}"
    )
    verbs.choices["export"].add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="file to write: JSON lines if its name ends in .jsonl, else Parquet",
    )


def ls(options: argparse.Namespace) -> int:
    print_line("\n".join(columns(read_checkpoint(options.store, _listed, options.step))), sys.stdout)
    return 0


def _listed(snapshot: "Snapshot") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("EPISODE", "ANSWERS", "REWARD", "KL", "WEIGHTS", "TRAINED")]
    for name in names(snapshot):
        episode_rows = read(snapshot, name, _ABOUT).to_pylist()
        mean = {
            key: _mean([row[key] for row in episode_rows if row[key] is not None]) for key in ("reward", "kl")
        }
        weights = sorted({row["weight_version"] for row in episode_rows})
        rows.append(
            (
                str(episode_rows[0]["episode"]),
                str(len(episode_rows)),
                mean["reward"],
                mean["kl"],
                str(weights[0]) if len(weights) == 1 else f"{weights[0]}-{weights[-1]}",
                _trained(episode_rows[0]),
            )
        )
    return rows


def _mean(values: list[float]) -> str:
    """The mean; `-` if no response has a value, such as the KL of a job without a reference."""
    return f"{sum(values) / len(values):.4g}" if values else "-"


def show(options: argparse.Namespace) -> int:
    def chosen(snapshot: "Snapshot") -> list[str]:
        rows: list[str] = []
        for name in reversed(names(snapshot, options.episode)):
            left = max(options.limit - len(rows), 0)
            rows += map(trajectory, read(snapshot, name, _READ, _OF_EPISODES).slice(0, left).to_pylist())
            if len(rows) >= options.limit:
                break
        return rows

    for row in read_checkpoint(options.store, chosen, options.step):
        print_line(row, sys.stdout)
    return 0


def export(options: argparse.Namespace) -> int:
    path: Path = options.path
    if not path.parent.is_dir() or path.is_dir():
        raise InvalidJob([Problem(str(path), "must be a file, in a directory that is there")])
    part = path.with_name(f".{path.name}.part")
    write = _jsonl if path.suffix == ".jsonl" else _parquet

    def written(snapshot: "Snapshot") -> str:
        chosen = names(snapshot, options.episode)
        count = write((read(snapshot, name) for name in chosen), part)
        return (
            f"{count} responses of {len(chosen)} episodes of the checkpoint of step {snapshot.step} in {path}"
        )

    try:
        done = read_checkpoint(options.store, written, options.step)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    print_line(done, sys.stdout)
    return 0


def names(snapshot: "Snapshot", episode: int | None = None) -> list[str]:
    """The episodes in a checkpoint, oldest first, or only the requested one. Raises InvalidJob if there is none."""
    episodes = [name for name in snapshot.blobs if name.startswith(EPISODES)]
    if episode is not None:
        episodes = [name for name in episodes if _number(name) == episode]
    if not episodes:
        held = ", ".join(str(_number(name)) for name in snapshot.blobs if name.startswith(EPISODES))
        absence = "no episode"
        if episode is not None:
            absence += f" {episode}; it holds {held or 'none'} (--step N reads an older checkpoint)"
        raise InvalidJob([Problem(f"the checkpoint of step {snapshot.step}", f"holds {absence}")])
    return episodes


def read(
    snapshot: "Snapshot", name: str, fields: tuple[str, ...] | None = None, more: tuple[str, ...] = ()
) -> Table:
    """An episode's table: all of it, or the `fields` and what it has of `more`. Raises as `opened`."""
    with opened(snapshot, name) as file:
        there = [name for name in more if name in file.schema_arrow.names]
        return file.read(columns=fields and [*fields, *there], use_threads=False)


@contextmanager
def opened(snapshot: "Snapshot", name: str) -> Iterator[Any]:
    """An episode's Parquet file. Raises DamagedSnapshot, and InvalidJob, also for what the caller reads, if it is of
    another format, or would decode to far more than its file."""
    arrow, parquet = package("pyarrow"), package("pyarrow.parquet")
    data = snapshot.blob(name)
    try:
        # On this thread: an Arrow thread that still holds a Python buffer when Python exits aborts the process.
        with parquet.ParquetFile(arrow.BufferReader(data), pre_buffer=False) as file:
            check_inflation(file.metadata, io.BytesIO(data), len(data))
            yield file
    except (arrow.ArrowException, KeyError, ValueError) as error:
        raise InvalidJob([Problem(name, f"is not a readable episode: {error}")]) from error


def trajectory(row: Mapping[str, Any]) -> str:
    """One response, formatted for people."""
    figure = {key: _mean([row[key]] if row[key] is not None else []) for key in ("reward", "kl")}
    cut_off = "" if row["finished"] else ", cut off at the limit"
    tokens = sum(row["sampled"]) if "sampled" in row else len(row["response_tokens"])
    turns = f" in {row['turns']:.0f} turns" if "turns" in row else ""
    head = (
        f"episode {row['episode']}  prompt {row['prompt_id']}  reward {figure['reward']}  KL {figure['kl']}  "
        f"{tokens} tokens{turns}{cut_off}  weights {row['weight_version']}  trained {_trained(row)}"
    )
    return f"{head}\n{indented(row['prompt'], '  ')}\n{indented(row['response'], '  > ')}\n"


def _trained(row: Mapping[str, Any]) -> str:
    return "not yet" if row["trained"] is None else f"in step {row['trained']}"


def _number(name: str) -> int:
    return int(name.removeprefix(EPISODES).partition(".")[0])


def _parquet(tables: Iterator[Table], path: Path) -> int:
    """Writes all columns of all episodes, with nulls where one lacks a column: the job's settings have changed."""
    arrow, parquet = package("pyarrow"), package("pyarrow.parquet")
    nullable = (table.cast(arrow.schema(f.with_nullable(True) for f in table.schema)) for table in tables)
    whole = arrow.concat_tables(nullable, promote_options="default")
    parquet.write_table(whole, path, compression="zstd")
    count: int = whole.num_rows
    return count


def _jsonl(tables: Iterator[Table], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as out:
        for table in tables:
            for row in table.to_pylist():
                out.write(strict_json.dumps(row, ensure_ascii=False) + "\n")
            count += table.num_rows
    return count

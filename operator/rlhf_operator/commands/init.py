"""`rlhf init`: writes a manifest to begin with, and what it needs beside a model, then validates it."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Any

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.dataset.rows import RENDERED_FIELDS
from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.errors.similar import suggestion
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.field_types import RowKind
from rlhf_api.host.foreign_files import READ_ERRORS, read_json
from rlhf_api.host.variables import ENVIRONMENT
from rlhf_api.spec import Spec

from ..console.exits import print_line
from ..console.subcommands import Commands, add_command
from ..local.preflight.models import mistyped
from ..local.resources import gpus
from . import init_files
from .init_rows import first_fields, graph_of, scores_responses, trained_on
from .run import validate

_REWARD = "rewards:score"
_MODEL = "a folder in Hugging Face format, or a name of the hub"


def add_init(commands: Commands) -> None:
    parser = add_command(
        commands, "init", help="write a manifest to begin with, sample rows and a reward with its test"
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="the manifest to write; default: ALGORITHM.yaml"
    )
    parser.add_argument("--algorithm", metavar="NAME", help=f"one of {', '.join(ALGORITHMS)}")
    parser.add_argument("--model", metavar="MODEL", help=f"what is trained: {_MODEL}")
    parser.add_argument(
        "--data",
        metavar="ROWS",
        help="a JSONL, JSON, Parquet or CSV file, or a split of the hub, hf://OWNER/NAME:SPLIT; default: sample rows, "
        "which are written",
    )
    parser.add_argument(
        "--columns",
        action="append",
        default=[],
        type=_pair,
        metavar="FIELD=COLUMN",
        help="which column of the rows is a field that they lack, such as prompt=question; may be repeated",
    )
    parser.add_argument(
        "--reward",
        metavar="REWARD",
        help="what scores responses: a function, as module:name, which is written unless its module is there, or a "
        f"reward model; default: {_REWARD}",
    )
    parser.add_argument(
        "--teacher", metavar="MODEL", help=f"whom {' and '.join(init_files.TAUGHT)} learns from: {_MODEL}"
    )
    parser.add_argument("--overwrite", action="store_true", help="write over FILE if it is there")


def _pair(text: str) -> tuple[str, str]:
    field, equals, column = text.partition("=")
    if not (field and equals and column):
        raise argparse.ArgumentTypeError(f"must be FIELD=COLUMN, such as prompt=question; got {text!r}")
    return field, column


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        _ask(options)
    if problems := [*_wrong_options(options)]:
        raise InvalidJob(problems)
    algorithm: str = options.algorithm
    file: Path = options.file or Path(f"{algorithm}.yaml")
    if file.exists() and not options.overwrite:
        raise InvalidJob([Problem(str(file), "is there already; add --overwrite, or name another FILE")])
    kind, columns = graph_of(algorithm).rows, dict(options.columns)
    with _undone_if_invalid() as write:
        data = options.data or f"{kind}.jsonl"
        if options.data is None and not Path(data).exists():
            write(Path(data), init_files.sample_rows(kind))
        if wrong := [*_data_problems(kind, columns, data)]:
            raise InvalidJob([*wrong, *_model_problems(options.model)])
        fields = first_fields(data, kind, columns)
        text = init_files.manifest(
            str(file),
            algorithm,
            model=options.model,
            teacher=options.teacher,
            samples=graph_of(algorithm).generates,
            data=data,
            fields=fields,
            columns=columns,
            reward=_reward(options, fields, write) if options.reward or scores_responses(algorithm) else {},
            positions=_positions(Path(options.model)),
            is_small=_is_small(options.model),
            has_gpu=bool(gpus.present(os.environ)),
        )
        write(file, text)
        validate(argparse.Namespace(file=file, set=[], variables=ENVIRONMENT, runtime=None, files=True))
    if fields:
        line = f"{data}: rows with {', '.join(fields)}, as {', '.join(trained_on(kind))} train on"
        print_line(line, sys.stdout)
    print_line(f"begin with `rlhf run {file}`", sys.stdout)
    return 0


def _wrong_options(options: argparse.Namespace) -> Iterator[Problem]:
    algorithm = options.algorithm
    if algorithm is None:
        yield Problem("--algorithm", f"is missing; one of {', '.join(ALGORITHMS)}")
    else:
        yield from _algorithm_problems(algorithm)
    if not options.model:
        yield Problem("--model", f"is missing; {_MODEL}")
    if algorithm in ALGORITHMS:
        yield from _teacher_problems(algorithm, options.teacher)
    if options.reward is not None and algorithm in ALGORITHMS and not graph_of(algorithm).generates:
        yield Problem(
            "--reward", f"{algorithm} trains on given responses, which nothing scores; leave it out"
        )
    yield from _reward_problems(options.reward or _REWARD)


def _teacher_problems(algorithm: str, name: str | None) -> Iterator[Problem]:
    if algorithm not in init_files.TAUGHT:
        if name is not None:
            yield Problem("--teacher", f"{algorithm} has none; leave it out; got {show(name)}")
    elif not name:
        yield Problem("--teacher", f"is missing; {_MODEL}")


def _ask(options: argparse.Namespace) -> None:
    """Asks for what is not given, again while the answer is wrong; the end of the input ends the questions."""
    with suppress(EOFError):
        known = ", ".join(ALGORITHMS)
        options.algorithm = options.algorithm or _answer(
            f"Algorithm ({known}) [grpo]", "grpo", _algorithm_problems
        )
        options.model = options.model or _answer(f"Model ({_MODEL})", "", _model_problems)
        if options.algorithm in init_files.TAUGHT and not options.teacher:
            options.teacher = _answer(
                f"Teacher ({_MODEL})", "", partial(_teacher_problems, options.algorithm)
            )
        if options.data is None and options.algorithm in ALGORITHMS:
            kind, columns = (
                graph_of(options.algorithm).rows,
                dict(options.columns),
            )
            problems = partial(_data_problems, kind, columns)
            options.data = _answer("Rows (a file) [sample rows]", "", problems) or None
        if options.reward is None and options.algorithm in ALGORITHMS and scores_responses(options.algorithm):
            question = f"Reward (a function, as module:name, or a reward model) [{_REWARD}]"
            options.reward = _answer(question, _REWARD, _reward_problems)


def _answer(question: str, default: str, problems: Callable[[str], Iterable[Problem]]) -> str:
    while True:
        answer = input(f"{question}: ").strip() or default
        wrong = [str(problem) for problem in problems(answer)]
        if not wrong:
            return answer
        for line in wrong:
            print_line(line, sys.stdout)


def _algorithm_problems(name: str) -> Iterator[Problem]:
    if name not in ALGORITHMS:
        yield Problem("--algorithm", f"{suggestion(name, [*ALGORITHMS])}; got {show(name)}")


def _model_problems(name: str) -> Iterator[Problem]:
    if name:
        yield from mistyped(_spec_of(name))
    else:
        yield Problem("--model", f"is missing; {_MODEL}")


def _data_problems(kind: RowKind, columns: Mapping[str, str], path: str) -> Sequence[Problem]:
    try:
        first_fields(path, kind, columns)
    except InvalidJob as error:
        return [Problem("--data", str(problem)) for problem in error.problems] if path else []
    return []


def _reward_problems(name: str) -> Iterator[Problem]:
    module, colon, function = name.rpartition(":")
    if colon and not all(
        part.isidentifier() and not iskeyword(part) for part in (*module.split("."), function)
    ):
        yield Problem("--reward", f"must be package.module:name, or a model; got {show(name)}")


def _reward(options: argparse.Namespace, fields: list[str], write: Callable[[Path, str], None]) -> Any:
    """The reward's part of the spec; a function whose module is not there is written, with its test."""
    module, colon, name = (options.reward or _REWARD).rpartition(":")
    if not colon:
        return {"model": {"reward": options.reward}}
    file = Path(*module.split(".")).with_suffix(".py")
    if not file.exists():
        target = next((field for field in fields if field == "answer" or field not in RENDERED_FIELDS), None)
        write(file, init_files.reward_function(name, target))
        test = Path(f"test_{file.name}")
        if not test.exists():
            write(test, init_files.reward_test(module, name, target))
    return {"reward": {"functions": [{"function": f"{module}:{name}"}]}}


@contextmanager
def _undone_if_invalid() -> Iterator[Callable[[Path, str], None]]:
    """Writes files, and says so; if the job turns out to be invalid, they are again what they were before."""
    before = dict[Path, bytes | None]()

    def write(file: Path, text: str) -> None:
        before[file] = file.read_bytes() if file.exists() else None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    try:
        yield write
    except BaseException:
        for file, content in before.items():
            file.unlink() if content is None else file.write_bytes(content)
        raise
    print_line(f"wrote: {', '.join(map(str, before))}", sys.stdout)


def _spec_of(model: str) -> Spec:
    """The least that names a policy."""
    return Spec.model_validate({"algorithm": "sft", "steps": 1, "model": {"policy": model}, "data": {}})


def _is_small(model: str) -> bool:
    """True for a local model that is known to have few parameters."""
    size = model_sizes(_spec_of(model)).get("policy")
    return size is not None and size.parameters < init_files.SMALL


def _positions(model: Path) -> int | None:
    """Tokens that fit a local model, prompt and response together; None if its files do not say."""
    try:
        number = read_json(model / "config.json")["max_position_embeddings"]
    except READ_ERRORS:
        return None
    return number if isinstance(number, int) and number > 1 else None

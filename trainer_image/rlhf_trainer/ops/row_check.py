"""Checks of all rows of a job as they will be trained on: each is rendered and tokenized, before a model is loaded."""

import multiprocessing
import os
import signal
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from zlib import crc32

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.rows import prompt_field
from rlhf_api.dataset.teachers import teacher_problem
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import RowKind
from rlhf_api.graph import TEACHER
from rlhf_api.host.reaper import end_with_parent
from rlhf_api.sections.data import Data

from ..data.chat import UnusableTemplate
from ..data.dataset import Dataset
from ..data.encode import TooLong
from ..data.steps import UnfitSteps, check_separator
from ..data.vision import ImageReader
from ..process import progress
from .datasets import encode_row

CHUNK = 500
"""Rows that a process checks at once."""
MOST_PROCESSES = 16
MOST_PROBLEMS = 20
"""Maximum number of rows of a dataset whose problems are reported."""


@dataclass
class RowCheck:
    """Result for some rows of a dataset. `problems`: of rows that cannot be read, rendered or tokenized, each with its
    place; `overlong`: numbers of the rows that are longer than a limit, ascending, and of them `uncut` those that are
    not to be cut; numbers of sequences by their tokens before any cut, and `prompts_cut` and `responses_cut` of them;
    `images`: a checksum of all their images, 0 without any.
    """

    rows: int = 0
    problems: list[Problem] = field(default_factory=list)
    overlong: list[int] = field(default_factory=list)
    uncut: list[int] = field(default_factory=list)
    prompt_lengths: Counter[int] = field(default_factory=Counter)
    response_lengths: Counter[int] = field(default_factory=Counter)
    prompts_cut: int = 0
    responses_cut: int = 0
    images: int = 0

    def add(self, other: "RowCheck") -> None:
        """Adds the result for the rows that follow."""
        self.rows += other.rows
        self.problems += other.problems
        self.overlong += other.overlong
        self.uncut += other.uncut
        self.prompt_lengths += other.prompt_lengths
        self.response_lengths += other.response_lengths
        self.prompts_cut += other.prompts_cut
        self.responses_cut += other.responses_cut
        self.images = _checksum(self.images, [other.images] if other.images else [])


@dataclass(frozen=True)
class RowChecker:
    """Checks rows of a dataset; without a tokenizer, only that they can be read."""

    dataset: Dataset
    kind: RowKind
    tokenizer: PreTrainedTokenizerBase | None
    data: Data
    reader: ImageReader | None = None
    teachers: Sequence[str] = ()
    """Names of teachers, of which each row has one; empty: it needs none."""

    def check(self, rows: range) -> RowCheck:
        """Checks these rows, in several processes if they are many and in files; none if their steps have a separator
        that ends none."""
        result = RowCheck()
        if self.kind == "stepwise" and self.tokenizer is not None:
            try:
                check_separator(self.tokenizer, self.data.step_separator)
            except InvalidJob as error:
                return RowCheck(problems=[*error.problems])
        with _results(self, rows) as results:
            for each in results:
                progress.sign()
                result.add(each)
        return result

    def check_chunk(self, rows: range) -> RowCheck:
        """Checks these rows in this process."""
        result = RowCheck(rows=len(rows))
        for number in progress.each(rows):
            try:
                self._check_row(number, result)
            except InvalidJob as error:
                result.problems += error.problems
        return result

    def _check_row(self, number: int, result: RowCheck) -> None:
        row = self.dataset[number]
        if self.teachers and (wrong := teacher_problem(row, self.teachers)):
            raise InvalidJob([Problem(f"{self.dataset.where(number)}: {TEACHER}", wrong)])
        if self.tokenizer is None:
            return
        try:
            made = encode_row(row, self.kind, self.tokenizer, self.data, self.reader)
        except TooLong as error:
            result.overlong.append(number)
            result.uncut.append(number)
            result.prompt_lengths[error.length] += 1
            result.prompts_cut += 1
            return
        except UnusableTemplate:  # the same for each row
            raise
        except UnfitSteps as error:
            place = self.dataset.where(number)
            raise InvalidJob([Problem(f"{place}: {p.where}", p.message) for p in error.problems]) from None
        except InvalidJob as error:
            place = f"{self.dataset.where(number)}: {prompt_field(row)}"
            raise InvalidJob([Problem(place, str(problem)) for problem in error.problems]) from None
        if any(sequence.prompt_cut or sequence.response_cut for sequence in made):
            result.overlong.append(number)
        result.images = _checksum(result.images, [p.checksum for each in made for p in each.pictures])
        for sequence in made:
            result.prompt_lengths[len(sequence.prompt) + sequence.prompt_cut] += 1
            result.response_lengths[len(sequence.response) + sequence.response_cut] += 1
            result.prompts_cut += sequence.prompt_cut > 0
            result.responses_cut += sequence.response_cut > 0


def _checksum(before: int, others: Sequence[int]) -> int:
    """A checksum that goes on with others."""
    return crc32(array("I", others).tobytes(), before) if others else before


_forked: RowChecker | None = None
"""State that a forked process has from the one that checks, without pickling."""


@contextmanager
def _results(checker: RowChecker, rows: range) -> Iterator[Iterator[RowCheck]]:
    chunks = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(chunks) // 2)
    if (
        processes < 2 or not checker.dataset.in_files
    ):  # a user's function may hold what a fork does not survive
        yield map(checker.check_chunk, chunks)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _begin, (checker,)) as pool:
        try:
            yield pool.map(_check_chunk, chunks)
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(checker: RowChecker) -> None:
    global _forked
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are not here
    _forked = checker


def _check_chunk(rows: range) -> RowCheck:
    assert _forked is not None, "processes of the pool begin with the checker"
    return _forked.check_chunk(rows)


@dataclass(frozen=True)
class Fitting:
    """Rows of a dataset to leave out, and a sentence on what is too long; '' if nothing is. `images`: as in
    `RowCheck`."""

    left_out: Sequence[int]
    message: str
    images: int = 0


def fitting(dataset: Dataset, result: RowCheck, data: Data, name: str) -> Fitting:
    """Applies `spec.data.overlong` to the dataset's rows of the source `name`. Raises InvalidJob with the problems
    found, and for overlong rows under `refuse`."""
    distinct = list(dict.fromkeys(result.problems))
    problems = distinct[:MOST_PROBLEMS]
    if more := len(distinct) - len(problems):
        problems.append(Problem(name, f"{more:,} more rows are invalid"))
    too_long = _too_long(result, data)
    if result.overlong and data.overlong == "refuse":
        advice = "raise the limit, or set spec.data.overlong to drop or cut"
        message = (
            f"is too long, as {len(result.overlong):,} of {result.rows:,} rows are: {too_long}; {advice}"
        )
        problems.append(Problem(dataset.where(result.overlong[0]), message))
    if problems:
        raise InvalidJob(problems)
    if not result.overlong:
        return Fitting((), "")
    left_out = result.overlong if data.overlong == "drop" else result.uncut
    done = [f"{len(left_out):,} are left out"] if left_out else []
    if cut := len(result.overlong) - len(left_out):
        done.append(f"{cut:,} are cut")
    share = f"{len(result.overlong):,} of {result.rows:,} rows are too long, {' and '.join(done)}"
    return Fitting(left_out, f"{name}: {share} (spec.data.overlong: {data.overlong}): {too_long}")


def check_all(checkers: Sequence[RowChecker]) -> list[Fitting]:
    """Checks all rows of all datasets. Raises InvalidJob with the problems of every one."""
    fit, problems = list[Fitting](), list[Problem]()
    for checker in checkers:
        dataset = checker.dataset
        try:
            result = checker.check(range(len(dataset)))
            fit.append(replace(fitting(dataset, result, checker.data, dataset.name), images=result.images))
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    return fit


def _too_long(result: RowCheck, data: Data) -> str:
    """The numbers of prompts and responses beyond their limits, and the longest of each."""
    parts = (
        ("prompt", result.prompts_cut, result.prompt_lengths, "maxPromptLength", data.max_prompt_length),
        (
            "response",
            result.responses_cut,
            result.response_lengths,
            "maxResponseLength",
            data.max_response_length,
        ),
    )
    return ", ".join(
        f"{count:,} {name}{'s' * (count > 1)} beyond spec.data.{key} ({limit}), the longest of {max(lengths):,} tokens"
        for name, count, lengths, key, limit in parts
        if count
    )

"""`rlhf data check` and `rlhf data show`: prints a job's rows as tokenized for training; `validate`: the problems
that `rlhf validate` reports. Reads the job as JSON on stdin.

The command line runs this in the trainer's environment; it loads the tokenizer and no model.
"""

import argparse
import json
import os
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf_api.algorithms import teachers_of
from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import RowKind, names_function
from rlhf_api.host.interpreter import problem_by_files
from rlhf_api.host.printing import write_line
from rlhf_api.sections.environment import PYTHON
from rlhf_api.spec import Spec

from ..data.chat import check_template
from ..data.dataset import TRAINING, Dataset, open_dataset, sources_of
from ..data.template_warnings import template_warnings
from ..data.text import context, continued_text
from ..data.tokenizer_trial import tokenizer_problem
from ..data.vision import ImageReader
from ..models.pretrained import architectures
from ..models.pretrained.fitting import fit_problems
from ..models.pretrained.hub import use_cache_if_unreachable
from ..models.pretrained.job_models import load_job_tokenizer
from ..models.pretrained.vision import load_reader
from ..ops.datasets import encode_row
from ..ops.row_check import RowChecker, check_all, fitting
from ..process.settings import model_source

PERCENTILES = (50, 90, 99)
DIM, GREEN, RESET = "\033[2m", "\033[32m", "\033[0m"


def check(
    spec: Spec,
    tokenizer: PreTrainedTokenizerBase | None,
    before: Sequence[Problem] = (),
    reader: ImageReader | None = None,
) -> Iterator[str]:
    """Lines about each file: rows, share, sequence lengths; `reader`: of a policy that reads images. Raises InvalidJob,
    with all problems and those `before`, after the last."""
    problems = [*before]
    for field, kind, dataset in _named(spec):
        first = 0
        for i, file in enumerate(dataset.files):
            share = dataset.mixture.shares[i]
            yield f"{field}: {file.name}: {len(file):,} rows, {share:,} of {dataset.mixture.samples:,} samples an epoch"
            checker = RowChecker(dataset, kind, tokenizer, spec.data, reader, _teachers(spec, field))
            report = checker.check(range(first, first + len(file)))
            first += len(file)
            yield from _lengths(
                "prompt", report.prompt_lengths, report.prompts_cut, spec.data.max_prompt_length
            )
            if kind != "prompts":
                lengths, cut = report.response_lengths, report.responses_cut
                yield from _lengths("response", lengths, cut, spec.data.max_response_length)
            try:
                yield from filter(None, [fitting(dataset, report, spec.data, file.name).message])
            except InvalidJob as error:
                problems += error.problems
    if spec.environment is not None:
        python = spec.environment.python
        if python is not None and (reason := problem_by_files(python)):
            problems.append(Problem(PYTHON, f"{reason}; got {python!r}"))
        opens = "the lengths are of the rows' own prompts, which its reset may replace or add to"
        yield f"spec.environment: {opens}; `rlhf env try` plays episodes"
    if tokenizer is not None:
        yield from warnings(tokenizer, (dataset for _, _, dataset in _named(spec)))
    if problems:
        raise InvalidJob(problems)


def warnings(tokenizer: PreTrainedTokenizerBase, datasets: Iterable[Dataset]) -> Iterator[str]:
    """Lines about a chat template that conversations of the datasets are rendered by."""
    lines = template_warnings(tokenizer)
    if lines and any(map(_has_conversation, datasets)):
        yield from (f"warning: {line}" for line in lines)


def _has_conversation(dataset: Dataset) -> bool:
    for number in range(len(dataset)):
        with suppress(InvalidJob):  # reported with its row
            if dataset[number].is_conversation:
                return True
    return False


def show(
    spec: Spec,
    tokenizer: PreTrainedTokenizerBase,
    number: int,
    reader: ImageReader | None = None,
    *,
    colour: bool,
) -> Iterator[str]:
    """Lines about one row of the training data: one per token, marked if it is trained on."""
    _, kind, dataset = next(_named(spec))
    if not 0 <= number < len(dataset):
        raise InvalidJob(
            [
                Problem(
                    "--row",
                    f"must be one of the {len(dataset)} rows, from 0 to {len(dataset) - 1}; got {number}",
                )
            ]
        )
    source, at = dataset.place(number)
    row = dataset[number]
    if row.is_conversation:
        check_template(tokenizer, dataset.files[source].where(at))
    sequences = encode_row(row, kind, tokenizer, spec.data, reader)
    for i, made in enumerate(sequences):
        which = f", sequence {i + 1} of {len(sequences)}" if len(sequences) > 1 else ""
        yield f"row {number}, {dataset.files[source].where(at)}{which}"
        yield (
            f"  prompt {len(made.prompt)} tokens ({made.prompt_cut} cut), response {len(made.response)} "
            f"({made.response_cut} cut), {sum(made.mask)} trained on"
        )
        marks = [("prompt", DIM)] * len(made.prompt)
        marks += [("trained", GREEN) if trained else ("-", "") for trained in made.mask]
        tokens = (*made.prompt, *made.response)
        for place, (token, (what, code)) in enumerate(zip(tokens, marks, strict=True)):
            before = context(tokenizer, (), tokens, place)
            text = continued_text(tokenizer, before, [token], skip_special_tokens=False)
            line = f"{place:6} {token:7}  {what:8} {text!r}"
            yield f"{code}{line}{RESET}" if colour and code else line


def _named(spec: Spec) -> Iterator[tuple[str, RowKind, Dataset]]:
    for field, kind, sources, samples in sources_of(spec):
        yield field, kind, open_dataset(sources, kind, samples)


def _teachers(spec: Spec, field: str) -> list[str]:
    """The names of which rows of this field have one: no teacher is asked about held-out rows."""
    return [teacher.name for teacher in teachers_of(spec)] if field == TRAINING else []


def problems_of(config: RunConfig) -> tuple[list[Problem], list[str]]:
    """Problems of the rows of local files, as tokenized for training, and of local models; and `warnings` if there are
    none."""
    spec, datasets, overlong = config.spec, list[Dataset](), list[str]()
    try:
        tokenizer, reader = _tried_tokenizer(config), _reader(config)
        problems = fit_problems(config, tokenizer)
    except InvalidJob as error:
        return list(error.problems), []
    for field, kind, sources, _ in sources_of(spec):
        for source in sources:
            if names_function(source.path) or "://" in source.path:
                continue
            try:
                datasets.append(open_dataset([source], kind))
                names = _teachers(spec, field)
                fitted = check_all([RowChecker(datasets[-1], kind, tokenizer, spec.data, reader, names)])
                overlong += [f"warning: {each.message}" for each in fitted if each.message]
            except InvalidJob as error:
                problems += error.problems
    lines = [*overlong, *warnings(tokenizer, datasets), *_repetition(spec, datasets)]
    return problems, [] if problems else lines


def _repetition(spec: Spec, local: Sequence[Dataset]) -> Iterator[str]:
    """A line if a step takes rows more than once; nothing where not all files of the training data are here."""
    training, per_step = spec.data.training_sources(), spec.data.prompts_per_step
    paths = {source.path for source in training}
    files = [file for dataset in local for file in dataset.files if file.name in paths]
    if len(files) == len(training) and (rows := sum(map(len, files))) < per_step:
        yield (
            f"warning: spec.data.promptsPerStep is {per_step}, and the training data has {rows} rows: a step takes "
            "some of them more than once"
        )


def _lengths(what: str, lengths: Counter[int], cut: int, longest: int) -> Iterator[str]:
    if not (count := lengths.total()):
        return
    steps = ", ".join(f"{p}% {_percentile(lengths, (count - 1) * p // 100)}" for p in PERCENTILES)
    yield (
        f"  {what} tokens: shortest {min(lengths)}, {steps}, longest {max(lengths)}; "
        f"{cut} of {count} longer than {longest}"
    )


def _percentile(lengths: Counter[int], place: int) -> int:
    """The length at a place of the sorted lengths."""
    ordered = sorted(lengths)
    return ordered[bisect_right([*accumulate(lengths[length] for length in ordered)], place)]


def _tokenizer(config: RunConfig) -> tuple[PreTrainedTokenizerBase | None, Sequence[Problem]]:
    """The job's tokenizer, or why it cannot be loaded: rows can be read without it."""
    if not Path(model_source(config, "tokenizer").path).is_dir():
        use_cache_if_unreachable()
    try:
        return _tried_tokenizer(config), ()
    except InvalidJob as error:
        return None, error.problems


def _reader(config: RunConfig) -> ImageReader | None:
    """The reader of images of the job's policy; None also for one of the hub whose tokenizer is another's, as the hub
    is not asked for a model's files beside those of the tokenizer."""
    policy, tokenizer = (model_source(config, field).path for field in ("policy", "tokenizer"))
    return load_reader(config) if policy == tokenizer or Path(policy).is_dir() else None


def _tried_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """The job's tokenizer. Raises InvalidJob also for a local one that takes too long or too much."""
    source = model_source(config, "tokenizer")
    file = Path(source.path, "tokenizer.json")
    if file.exists() and (problem := tokenizer_problem(file)):
        raise InvalidJob([Problem(source.where, f"cannot load {source.path!r}: {problem}")])
    return load_job_tokenizer(config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("check", "show", "validate"))
    parser.add_argument("--row", type=int, default=0)
    options = parser.parse_args()
    config = RunConfig.model_validate_json(sys.stdin.read())
    spec = config.spec
    if options.what == "validate":
        architectures.register(spec.model.architectures)
        wrong, warned = problems_of(config)
        write_line(json.dumps([[[problem.where, problem.message] for problem in wrong], warned]), sys.stdout)
        return 0
    made = spec.model.create is None or Path(config.workdir, "initial").exists()
    try:
        architectures.register(spec.model.architectures)
        tokenizer, problems = _tokenizer(config) if made else (None, ())
        reader = None if tokenizer is None else _reader(config)
        if options.what == "show":
            if problems:
                raise InvalidJob(problems)
            if tokenizer is None:
                message = f"is made when the job runs; there is none in {config.workdir} yet"
                raise InvalidJob([Problem("spec.model.create.tokenizer", message)])
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            lines = show(spec, tokenizer, options.row, reader, colour=colour)
        else:
            lines = check(spec, tokenizer, problems, reader)
            if not made:
                note = "the tokenizer is made when the job runs: rows are checked, but their lengths in tokens are not"
                write_line(note, sys.stdout)
        for line in lines:
            write_line(line, sys.stdout)
    except InvalidJob as error:
        for problem in error.problems:
            write_line(f"error: {problem}", sys.stderr)
        return 2
    except BrokenPipeError:  # of a reader such as head, which has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return 0

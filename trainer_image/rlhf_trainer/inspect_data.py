"""`rlhf data check` and `rlhf data show`: prints a job's rows as tokenized for training. Reads the job as JSON on
stdin.

`rlhf data` runs this in the trainer's environment; it loads the tokenizer and no model.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.algorithms import graph_of
from rlhf_api.graph import RowKind
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.rows import Row
from rlhf_api.run import RunConfig
from rlhf_api.spec import Data, Spec

from .data.chat import arguments_of, check_template
from .data.dataset import Dataset, open_datasets
from .data.encode import Encoded, encode_prompt
from .data.template_warnings import template_warnings
from .data.text import context, continued_text
from .models import architectures
from .models.hub import use_cache_if_unreachable
from .models.loading import load_job_tokenizer
from .ops.datasets import ENCODE
from .settings import model_source

MOST_PROBLEMS = 20
"""Maximum number of problems reported per file."""
PERCENTILES = (50, 90, 99)
Lengths = list[tuple[int, int]]
"""For each sequence, its length and the number of tokens cut from it."""
DIM, GREEN, RESET = "\033[2m", "\033[32m", "\033[0m"


def _encode_row(row: Any, kind: RowKind, tokenizer: PreTrainedTokenizerBase, data: Data) -> list[Encoded]:
    """The sequences of one row; only the prompt if responses are sampled."""
    if kind == "prompts":
        arguments = arguments_of(tokenizer, row, data)
        return [encode_prompt(tokenizer, row.prompt, data.max_prompt_length, arguments)]
    return ENCODE[kind]([row], tokenizer, data)


def check(
    spec: Spec, tokenizer: PreTrainedTokenizerBase | None, before: Sequence[Problem] = ()
) -> Iterator[str]:
    """Lines about each file: rows, share, sequence lengths. Raises InvalidJob, with all problems and those `before`,
    after the last."""
    problems = [*before]
    for field, kind, dataset in _named(spec):
        first = 0
        for i, file in enumerate(dataset.files):
            share = dataset.mixture.shares[i]
            yield f"{field}: {file.name}: {len(file):,} rows, {share:,} of {dataset.mixture.samples:,} samples an epoch"
            prompts, responses, wrong = _read(
                dataset, range(first, first + len(file)), kind, tokenizer, spec.data
            )
            first += len(file)
            if len(wrong) > MOST_PROBLEMS:
                rest = Problem(file.name, f"{len(wrong) - MOST_PROBLEMS} more rows are invalid")
                wrong = [*wrong[:MOST_PROBLEMS], rest]
            problems += wrong
            yield from _lengths("prompt", prompts, spec.data.max_prompt_length)
            if kind != "prompts":
                yield from _lengths("response", responses, spec.data.max_answer_length)
    yield from warnings(spec, tokenizer) if tokenizer is not None else ()
    if problems:
        raise InvalidJob(problems)


def warnings(spec: Spec, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Lines about a chat template that the job's conversations are rendered by."""
    lines = template_warnings(tokenizer)
    if lines and any(_has_conversation(dataset) for _, _, dataset in _named(spec)):
        yield from (f"warning: {line}" for line in lines)


def _has_conversation(dataset: Dataset) -> bool:
    for number in range(len(dataset)):
        with suppress(InvalidJob):  # reported with its row
            if dataset[number].is_conversation:
                return True
    return False


def show(spec: Spec, tokenizer: PreTrainedTokenizerBase, number: int, *, colour: bool) -> Iterator[str]:
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
    sequences = _encode_row(row, kind, tokenizer, spec.data)
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
    rows, held_out, text = open_datasets(spec)
    kind = graph_of(spec).rows
    yield "spec.data", kind, rows
    for name, dataset in held_out.items():
        yield f"spec.evaluation, {name}", kind, dataset
    if text:
        yield "spec.pretraining.data", "responses", text


def _read(
    dataset: Dataset, rows: range, kind: RowKind, tokenizer: PreTrainedTokenizerBase | None, data: Data
) -> tuple[Lengths, Lengths, list[Problem]]:
    """The lengths of prompts and responses, without their tokens, which would fill the memory; and what is wrong."""
    prompts, responses, problems = Lengths(), Lengths(), list[Problem]()
    for number in rows:
        source, at = dataset.place(number)
        try:
            row: Row = dataset[number]
        except InvalidJob as error:
            problems += error.problems
            continue
        try:
            for made in _encode_row(row, kind, tokenizer, data) if tokenizer is not None else ():
                prompts.append((len(made.prompt), made.prompt_cut))
                responses.append((len(made.response), made.response_cut))
        except InvalidJob as error:
            problems += [Problem(dataset.files[source].where(at), str(problem)) for problem in error.problems]
    return prompts, responses, problems


def _lengths(what: str, found: Lengths, longest: int) -> Iterator[str]:
    if not found:
        return
    whole, cut = sorted(length + lost for length, lost in found), sum(lost > 0 for _, lost in found)
    steps = ", ".join(f"{p}% {whole[(len(whole) - 1) * p // 100]}" for p in PERCENTILES)
    yield f"  {what} tokens: shortest {whole[0]}, {steps}, longest {whole[-1]}; {cut} of {len(whole)} cut to {longest}"


def _tokenizer(config: RunConfig) -> tuple[PreTrainedTokenizerBase | None, Sequence[Problem]]:
    """The job's tokenizer, or why it cannot be loaded: rows can be read without it."""
    if not Path(model_source(config, "tokenizer").path).is_dir():
        use_cache_if_unreachable()
    try:
        return load_job_tokenizer(config), ()
    except InvalidJob as error:
        return None, error.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("check", "show"))
    parser.add_argument("--row", type=int, default=0)
    options = parser.parse_args()
    config = RunConfig.model_validate_json(sys.stdin.read())
    spec = config.spec
    made = spec.model.create is None or Path(config.workdir, "initial").exists()
    try:
        architectures.register(spec.model.architectures)
        tokenizer, problems = _tokenizer(config) if made else (None, ())
        if options.what == "show":
            if problems:
                raise InvalidJob(problems)
            if tokenizer is None:
                message = f"is made when the job runs; there is none in {config.workdir} yet"
                raise InvalidJob([Problem("spec.model.create.tokenizer", message)])
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            lines = show(spec, tokenizer, options.row, colour=colour)
        else:
            lines = check(spec, tokenizer, problems)
            if not made:
                print(
                    "the tokenizer is made when the job runs: rows are checked, but their lengths in tokens are not"
                )
        for line in lines:
            print(line)
        sys.stdout.flush()
    except InvalidJob as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of a reader such as head, which has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return 0

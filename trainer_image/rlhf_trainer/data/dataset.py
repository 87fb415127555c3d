"""Dataset: rows of several files in the manifest's mixture, read lazily."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from rlhf_api.algorithms import graph_of
from rlhf_api.base import names_function
from rlhf_api.evaluation import evaluation_sets
from rlhf_api.graph import RowKind
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.row_files import RowFile, Rows
from rlhf_api.rows import Row, with_system_prompt
from rlhf_api.sources import Source, training_sources, unknown_store
from rlhf_api.spec import Spec

from .. import progress
from .copies import PARQUET, local_file
from .imported import ImportedRows
from .stream import Mixture, RowStream


@dataclass(frozen=True)
class Dataset(Rows):
    """Rows of all sources, concatenated; `mixture` gives each source's share."""

    files: tuple[RowFile | ImportedRows, ...]
    system_prompts: tuple[str | None, ...]
    mixture: Mixture

    def __len__(self) -> int:
        return sum(self.mixture.counts)

    def row(self, index: int) -> Row:
        source, at = self.place(index)
        row, prompt = self.files[source][at], self.system_prompts[source]
        return row if prompt is None else with_system_prompt(row, prompt)

    def place(self, index: int) -> tuple[int, int]:
        """(source, row within it) of a global row number."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        source = bisect_right(self._ends, index)
        return source, index - self._ends[source] + self.mixture.counts[source]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.mixture.counts))

    def checksums(self) -> dict[str, int]:
        """Checksums of the rows of each source, by its path."""
        return {file.name: file.checksum() for file in self.files}

    def check(self) -> str | None:
        """Reads and checks all rows; returns the place of the first conversation (which needs a chat template), or
        None.

        Raises InvalidJob, with every file's first bad row.
        """
        problems, conversation = list[Problem](), None
        for file, prompt in zip(self.files, self.system_prompts, strict=True):
            try:
                for i, row in enumerate(progress.each(file)):
                    if conversation is None and (prompt is not None or row.is_conversation):
                        conversation = file.where(i)
            except InvalidJob as error:
                problems += error.problems
        if problems:
            raise InvalidJob(problems)
        return conversation


def open_dataset(field: str, sources: Sequence[Source], kind: RowKind, samples: int | None = None) -> Dataset:
    """Opens the dataset of the manifest's `field`, indexed but not checked; `samples`: samples per epoch.

    Raises InvalidJob where files cannot be read.
    """
    files, problems = list[RowFile | ImportedRows](), list[Problem]()
    for source in sources:
        try:
            files.append(_opened(source.path, kind))
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    weights = [source.weight for source in sources if source.weight is not None]
    try:
        mixture = Mixture.weighted([len(file) for file in files], weights or None, samples)
    except ValueError as error:
        raise InvalidJob([Problem(field, str(error))]) from None
    return Dataset(tuple(files), tuple(source.system_prompt for source in sources), mixture)


def _opened(path: str, kind: RowKind) -> RowFile | ImportedRows:
    if names_function(path):
        return ImportedRows(path, kind)
    if what := unknown_store(path):
        raise InvalidJob([Problem(path, what)])
    return RowFile(local_file(path), kind, path, by_number=path.endswith(PARQUET))


def open_datasets(spec: Spec) -> tuple[Dataset, dict[str, Dataset], Dataset | None]:
    """Training rows, those of each evaluation set by its name, and pretraining text. Raises InvalidJob where files
    cannot be read."""
    data, field, kind = spec.data, "spec.data.samplesPerEpoch", graph_of(spec).rows
    rows = open_dataset(field, training_sources(spec), kind, data.samples_per_epoch)
    held_out, text = dict[str, Dataset](), None
    for found in evaluation_sets(spec):
        sources = [Source(path=path, systemPrompt=data.system_prompt) for path in found.data]
        held_out[found.name] = open_dataset("spec.evaluation", sources, kind)
    if spec.pretraining:
        sources = [Source(path=path) for path in spec.pretraining.data]
        text = open_dataset("spec.pretraining.data", sources, "responses")
    return rows, held_out, text


def stream(rows: Sequence[Row], seed: int) -> RowStream:
    """Sample order of a run with this seed; every row of a plain list once an epoch."""
    whole = Mixture((len(rows),), (len(rows),))
    return RowStream(rows.mixture if isinstance(rows, Dataset) else whole, seed)

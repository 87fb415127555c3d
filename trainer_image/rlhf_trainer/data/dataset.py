"""Dataset: rows of several files in the manifest's mixture, read lazily."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from urllib.parse import unquote, urlsplit
from zlib import crc32

from rlhf_api.dataset.row_files import TABLES, RowFile, Rows
from rlhf_api.dataset.rows import ImageRow, Row, with_system_prompt
from rlhf_api.dataset.teachers import with_teacher
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import RowKind, names_function
from rlhf_api.host.job_files import located
from rlhf_api.sections.data import Source, unknown_store
from rlhf_api.spec import Spec

from ..process import progress
from .copies import local_file
from .images import placed
from .imported import ImportedRows
from .stream import Mixture, RowStream

TRAINING = "spec.data"
"""Field of the training rows, among those of `sources_of`."""


@dataclass(frozen=True)
class Dataset(Rows):
    """Rows of all sources, concatenated; `mixture` gives each source's share. `gaps`: the rows that are left out of
    each source, ascending, each less the number of those before it."""

    files: tuple[RowFile | ImportedRows, ...]
    system_prompts: tuple[str | None, ...]
    teachers: tuple[str | None, ...]
    mixture: Mixture
    weights: tuple[float, ...]
    samples: int | None
    gaps: tuple[Sequence[int], ...] = ()

    def __len__(self) -> int:
        return sum(self.mixture.counts)

    def row(self, index: int) -> Row:
        source, at = self.place(index)
        row, prompt = self.files[source][at], self.system_prompts[source]
        if isinstance(row, ImageRow) and row.images:
            row = self._placed(row, source, index)
        if (teacher := self.teachers[source]) is not None:
            row = with_teacher(row, teacher)
        return row if prompt is None else with_system_prompt(row, prompt)

    def _placed(self, row: ImageRow, source: int, index: int) -> Row:
        """The row with the paths or URLs of its images, see `placed`."""
        file, name = self.files[source], self.files[source].name
        folder = "" if not isinstance(file, RowFile) or name.startswith("hf://") else _folder(name)
        try:
            return row.model_copy(update={"images": [placed(image, folder) for image in row.images]})
        except ValueError as error:
            raise InvalidJob([Problem(f"{self.where(index)}: images", str(error))]) from None

    def place(self, index: int) -> tuple[int, int]:
        """(source, row within it) of a global row number."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        source = bisect_right(self._ends, index)
        at = index - self._ends[source] + self.mixture.counts[source]
        return source, at + (bisect_right(self.gaps[source], at) if self.gaps else 0)

    def where(self, index: int) -> str:
        """Place of a global row number, as file and line."""
        source, at = self.place(index)
        return self.files[source].where(at)

    @property
    def name(self) -> str:
        """The names of all sources."""
        return ", ".join(file.name for file in self.files)

    @property
    def in_files(self) -> bool:
        """True if no function returned rows."""
        return all(isinstance(file, RowFile) for file in self.files)

    def without(self, rows: Sequence[int]) -> "Dataset":
        """The dataset without these global row numbers, ascending. Raises InvalidJob where a source has no others."""
        assert not self.gaps, "rows are left out once"
        left_out: list[list[int]] = [[] for _ in self.files]
        for row in rows:
            source, at = self.place(row)
            left_out[source].append(at)
        counts = [len(file) - len(out) for file, out in zip(self.files, left_out, strict=True)]
        if 0 in counts:
            message = (
                "has no rows that are not too long; raise spec.data.maxPromptLength or maxResponseLength"
            )
            raise InvalidJob([Problem(self.files[counts.index(0)].name, message)])
        gaps = tuple(array("I", [row - i for i, row in enumerate(out)]) for out in left_out)
        mixture = _mixture(counts, self.weights, self.samples)
        return replace(self, mixture=mixture, gaps=gaps)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.mixture.counts))

    def checksums(self) -> dict[str, int]:
        """Checksums of the rows of each source, by its path."""
        sums = [file.checksum() for file in self.files]
        for i, gaps in enumerate(self.gaps):
            sums[i] = crc32(array("I", gaps).tobytes(), sums[i]) if gaps else sums[i]
        return {file.name: sum_ for file, sum_ in zip(self.files, sums, strict=True)}

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


def open_dataset(sources: Sequence[Source], kind: RowKind, samples: int | None = None) -> Dataset:
    """Opens a dataset, indexed but not checked; `samples`: samples per epoch.

    Raises InvalidJob where files cannot be read.
    """
    files, problems = list[RowFile | ImportedRows](), list[Problem]()
    for source in sources:
        try:
            files.append(_opened(source, kind))
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    weights = tuple(source.weight for source in sources if source.weight is not None)
    mixture = _mixture([len(file) for file in files], weights, samples)
    prompts = tuple(source.system_prompt for source in sources)
    teachers = tuple(source.teacher for source in sources)
    return Dataset(tuple(files), prompts, teachers, mixture, weights, samples)


def _folder(name: str) -> str:
    """The folder of a file of rows: a path, or the URL of a store."""
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
    return name.rpartition("/")[0] if "://" in name else str(located(name).parent)


def _mixture(counts: Sequence[int], weights: Sequence[float], samples: int | None) -> Mixture:
    try:
        return Mixture.weighted(counts, weights or None, samples)
    except ValueError as error:
        raise InvalidJob([Problem("spec.data.samplesPerEpoch", str(error))]) from None


def _opened(source: Source, kind: RowKind) -> RowFile | ImportedRows:
    path = source.path
    if names_function(path):
        return ImportedRows(path, kind, source.columns)
    if what := unknown_store(path):
        raise InvalidJob([Problem(path, what)])
    of_table = path.endswith(TABLES) or path.startswith("hf://")
    return RowFile(local_file(path), kind, path, source.columns, of_table=of_table)


def sources_of(spec: Spec) -> Iterator[tuple[str, RowKind, Sequence[Source], int | None]]:
    """Field, kind of rows, sources and samples per epoch of the training rows, of each evaluation set, and of the
    pretraining text, in this order."""
    data, kind = spec.data, spec.graph.rows
    yield TRAINING, kind, spec.data.training_sources(), data.samples_per_epoch
    for evaluation_set in spec.evaluation_sets():
        sources = [
            Source(path=path, systemPrompt=data.system_prompt, columns=data.columns)
            for path in evaluation_set.data
        ]
        yield f"spec.evaluation, {evaluation_set.name}", kind, sources, None
    if spec.pretraining:
        yield (
            "spec.pretraining.data",
            "responses",
            [Source(path=path) for path in spec.pretraining.data],
            None,
        )


@dataclass(frozen=True)
class Datasets:
    """Training rows, those of each evaluation set by its name, and pretraining text; `each` of them in this order."""

    rows: Dataset
    held_out: Mapping[str, Dataset]
    text: Dataset | None = None

    @classmethod
    def in_order(cls, names: Iterable[str], each: Iterable[Dataset]) -> "Datasets":
        """Those of `each`; `names`: of the evaluation sets."""
        left = iter(each)
        return cls(next(left), {name: next(left) for name in names}, next(left, None))

    @property
    def each(self) -> list[Dataset]:
        return [self.rows, *self.held_out.values(), *([] if self.text is None else [self.text])]

    def check(self) -> str | None:
        """Reads and checks all rows; returns the place of the first conversation, or None. Raises InvalidJob, with
        every file's first bad row."""
        problems, conversations = list[Problem](), list[str | None]()
        for dataset in self.each:
            try:
                conversations.append(dataset.check())
            except InvalidJob as error:
                problems += error.problems
        if problems:
            raise InvalidJob(problems)
        return next(filter(None, conversations), None)

    def checksums(self) -> dict[str, int]:
        """Checksums of the rows of every source, by its path."""
        return {name: sum_ for dataset in self.each for name, sum_ in dataset.checksums().items()}


def open_datasets(spec: Spec) -> Datasets:
    """Raises InvalidJob where files cannot be read."""
    opened = (open_dataset(sources, kind, samples) for _, kind, sources, samples in sources_of(spec))
    return Datasets.in_order([each.name for each in spec.evaluation_sets()], opened)


def stream(rows: Sequence[Row], seed: int) -> RowStream:
    """Sample order of a run with this seed; every row of a plain list once an epoch."""
    whole = Mixture((len(rows),), (len(rows),))
    return RowStream(rows.mixture if isinstance(rows, Dataset) else whole, seed)

"""Encodes dataset rows in a thread of its own, those of the next step while models are updated with the last ones."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rlhf_api.dataset.rows import Row

from ..tensors.columns import Columns

Encoded = tuple[Columns, dict[str, float]]
"""The sequences of rows, and metrics of them."""
Samples = list[tuple[int, int]]
"""As `RowStream.take` returns them."""


class Encoder:
    """One thread reads rows and has the tokenizer, which is not made for several; errors are raised by what needs the
    rows."""

    def __init__(self, rows: Sequence[Row], encode: Callable[[Sequence[Row]], Encoded]) -> None:
        """`rows`: by their numbers, as in samples."""
        self._rows, self._encode = rows, encode
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._begun: tuple[Samples, Future[Encoded]] | None = None

    def encode(self, rows: Sequence[Row]) -> Encoded:
        return self._thread.submit(self._encode, rows).result()

    def take(self, samples: Samples) -> Encoded:
        """The sequences that `begin` made of the same samples; of others, such as those after a rollback, made now."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != samples:
            return self._submit(samples).result()
        return begun[1].result()

    def begin(self, samples: Samples) -> None:
        """Begins with samples that are needed next, without waiting for them."""
        self._begun = samples, self._submit(samples)

    def _submit(self, samples: Samples) -> Future[Encoded]:
        return self._thread.submit(lambda: self._encode([self._rows[row] for _, row in samples]))

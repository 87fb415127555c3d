"""Calls of the reference role where each response has a teacher of its own: one client a teacher, all at once."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ..scoring.client import Scorer
from ..scoring.messages import places
from ..tensors.records import Sequences


class Teachers:
    """Asks the teacher of each response; one that fails and starts again is waited for alone."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        """`scorers`: a client of each teacher's processes, in the order of the manifest."""
        self._scorers = scorers
        self._pool = ThreadPoolExecutor(max_workers=len(scorers), thread_name_prefix="teacher")

    def ask(self, sequences: Sequences, array: str, *, teacher: Tensor, width: int = 0) -> Tensor:
        """The named array over all sequences in their order, as of `Scorer.ask`, which says what it raises. `teacher`:
        the number of each one's."""
        parts: dict[Future[Tensor], Tensor] = {}
        for number in teacher.long().unique().tolist():
            rows = (teacher == number).nonzero()[:, 0]
            part, scorer = sequences.select(rows), self._scorers[number]
            parts[self._pool.submit(scorer.ask, part, array, width=width)] = places(array, sequences, rows)
        wait(parts)
        made = [(part.result(), at) for part, at in parts.items()]
        count = sum(len(at) for _, at in made)
        whole = torch.zeros((count, width) if width else (count,), dtype=made[0][0].dtype)
        for values, at in made:
            whole[at] = values
        return whole

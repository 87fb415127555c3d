"""All responses of a step, from the Parquet table of its episode, in the form of the samples that a run keeps."""

from collections.abc import Iterable, Iterator
from math import nan
from statistics import fmean
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from rlhf_api.contract.samples import Sample
from rlhf_api.graph import REWARD

from ...archive.episode_file import EpisodeFile
from ...archive.sample_columns import BYTES, Columns
from ...archive.sample_index import Placed

_LONGEST = 20_000
"""Characters of a text."""
_TEXTS = ("prompt_id", "prompt", "response", "reward", "finished", "weight_version")
_LISTS = ("prompt_tokens", "response_tokens", "advantages", "sampled")
"""Of a row: its tokens, and values of each, which not every job has; see the trainer's episodes."""


class EpisodeRows:
    """The responses of one step. Not for several threads at once."""

    is_whole = True

    def __init__(self, file: EpisodeFile, step: int) -> None:
        """Raises InvalidJob for what cannot be read."""
        self.file, self._step = file, step
        self.recent = dict[Any, dict[str, Any]]()
        """Replies, as of a SampleIndex."""
        self.columns = Columns()
        for group in range(file.groups):
            rows = file.read_group(group, ("prompt_id", "prompt", "reward")).to_pylist()
            for row in rows:
                score = nan if row["reward"] is None else row["reward"]
                self.columns.append(0, step, score, row["prompt_id"], row["prompt"][:_LONGEST])
        self.columns.number()
        self._texts = (*_TEXTS, *(name for name in file.columns if name.startswith(REWARD)))
        self._lists = tuple(name for name in _LISTS if name in file.columns)

    @property
    def memory_bytes(self) -> int:
        return BYTES * len(self.columns) + self.file.memory_bytes

    def read_lines(self, places: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Rows' places with their texts as a sample's line."""
        for place in places:
            row = self.file.read_row(place, self._texts)
            sample = {
                "step": self._step,
                "prompt_id": row["prompt_id"],
                "prompt": row["prompt"][:_LONGEST],
                "response": row["response"][:_LONGEST],
                "score": row["reward"],
                "rewards": {
                    name.removeprefix(REWARD): value for name, value in row.items() if name.startswith(REWARD)
                },
                "finished": row["finished"],
                "weight_version": row["weight_version"],
            }
            yield place, to_json(sample, inf_nan_mode="null")

    def parse(self, place: int, line: bytes) -> Placed | None:
        """The sample of a line, with what its tokens say; None for a row of wrong types."""
        row = self.file.read_row(place, self._lists)
        sampled = row.get("sampled") or [True] * len(row["response_tokens"])
        values = [
            value for value, is_own in zip(row.get("advantages") or (), sampled, strict=False) if is_own
        ]
        more = {
            "advantage": fmean(values) if values else None,
            "prompt_length": len(row["prompt_tokens"]),
            "response_length": sum(sampled),
        }
        try:
            sample = Sample.model_validate({**from_json(line), **more})
        except (ValueError, ValidationError):
            return None
        return Placed(sample, self.columns.numbers[place], self.columns.groups[place])

"""Columns of a step's sequences: what the nodes of an algorithm's graph read and write, packed as `records` are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from rlhf_api.graph import REFERENCE_TOP

from .records import Sequences


class MissingColumn(LookupError):
    """No node has written this column."""


@dataclass(frozen=True)
class Columns:
    """N sequences with named columns: the data between the nodes of an algorithm's graph.

    `tokens` are response-aligned [A], A = sum of the response lengths, int64 for `versions` (the weight version that
    sampled each token) and bool for `mask` (tokens that are trained on; all if missing), else float32; `rows` are [N],
    one entry a sequence. Columns of tokens: log-probabilities in nats (`sampled_logprobs` of the generator, `logprobs`
    of the policy before the step's updates, `reference_logprobs`), `values`, `token_rewards`, `returns` in units of
    reward, `advantages`, `critic_outputs` (normalised values). Columns of rows: `scores` in units of reward, `finished`
    bool (false where the length limit cut the response off), `position` int64 (place of the prompt in the run's order:
    the same for all responses to one prompt). Of episodes, in units of reward: of rows `environment_reward`, NaN if the
    episode has none, and of tokens `turn_rewards`, at the last one of each turn, if the turns have any; and `turns`
    int64, a column of rows. `reference_top` [A, 2 K] alone has several numbers a token, see `top_tokens`.
    """

    sequences: Sequences
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)

    def __contains__(self, name: str) -> bool:
        return name in self.tokens or name in self.rows

    def __getitem__(self, name: str) -> Tensor:
        """The column of that name. Raises MissingColumn if no node has written it."""
        if name in self.tokens:
            return self.tokens[name]
        if name in self.rows:
            return self.rows[name]
        known = ", ".join((*self.tokens, *self.rows)) or "none"
        raise MissingColumn(f"there is no column {name!r}; columns: {known}")

    @property
    def lengths(self) -> Tensor:
        """Number of response tokens of each sequence: int64 [N]."""
        return self.sequences.response_lengths

    @property
    def mask(self) -> Tensor | None:
        """Tokens that are trained on: bool [A]; None for all."""
        return self.tokens.get("mask")

    def with_tokens(self, **columns: Tensor) -> Self:
        """Adds or replaces token columns. Raises ValueError for one that is not [A], TypeError for no tensor."""
        return replace(
            self, tokens={**self.tokens, **self._checked(columns, int(self.lengths.sum()), "tokens")}
        )

    def with_rows(self, **columns: Tensor) -> Self:
        """Adds or replaces row columns. Raises ValueError for one that is not [N], TypeError for no tensor."""
        return replace(self, rows={**self.rows, **self._checked(columns, len(self), "sequences")})

    def select(self, rows: Tensor) -> Self:
        """The sequences `rows` (int64 [n]) with their columns, in that order."""
        index = self.sequences.response_index(rows)
        return replace(
            self,
            sequences=self.sequences.select(rows),
            tokens={name: column[index] for name, column in self.tokens.items()},
            rows={name: column[rows] for name, column in self.rows.items()},
        )

    @classmethod
    def join(cls, parts: Sequence["Columns"]) -> Self:
        """Concatenates all parts, with the columns that every part has."""

        def joined(kind: str) -> dict[str, Tensor]:
            named: list[Mapping[str, Tensor]] = [getattr(part, kind) for part in parts]
            return {n: torch.cat([c[n] for c in named]) for n in named[0] if all(n in c for c in named)}

        return cls(Sequences.join([part.sequences for part in parts]), joined("tokens"), joined("rows"))

    @staticmethod
    def _checked(columns: dict[str, Tensor], count: int, what: str) -> dict[str, Tensor]:
        for name, column in columns.items():
            wide = name == REFERENCE_TOP and isinstance(column, Tensor) and column.ndim == 2
            if not isinstance(column, Tensor):
                raise TypeError(f"column {name!r} is a {type(column).__name__}; make a tensor of it")
            if column.shape != (count,) and not (wide and len(column) == count):
                shape = tuple(column.shape)
                raise ValueError(
                    f"column {name!r} has shape {shape}; it needs one entry for each of {count} {what}"
                )
        return columns

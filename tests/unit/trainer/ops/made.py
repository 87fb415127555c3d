"""Columns for operations, and the context that a job's settings make."""

from dataclasses import replace

import torch
from tests.unit.trainer.graph.specs import ONLINE, spec_of

from rlhf_api.algorithms import settings_of
from rlhf_trainer.ops import OpContext
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

LENGTHS = (3, 1, 2, 4, 2, 3, 1, 5)
"""Response tokens: two groups of three, one of two; the last response was cut off at its limit."""
POSITIONS = (7, 7, 7, 4, 4, 4, 9, 9)


def context(algorithm: str, settings: str = "", *overrides: str, limit: int = 5) -> OpContext:
    sampling = f"spec.sampling={{responsesPerPrompt: 4, maxNewTokens: {limit}}}"
    spec = spec_of(algorithm, settings, *([sampling] if algorithm in ONLINE else []), *overrides)
    return OpContext(spec, settings_of(spec))


def columns(seed: int = 0) -> Columns:
    draw = torch.Generator().manual_seed(seed)
    sequences = Sequences.pack([((1,) * (1 + i % 3), (2,) * length) for i, length in enumerate(LENGTHS)])
    count = sum(LENGTHS)

    def floats(scale: float = 1.0, size: int = count) -> torch.Tensor:
        return scale * torch.randn(size, generator=draw)

    logprobs = -floats().abs() - 0.05
    tokens = {
        "logprobs": logprobs,
        "sampled_logprobs": logprobs + floats(0.2),
        "versions": torch.zeros(count, dtype=torch.int64),
        "reference_logprobs": logprobs + floats(0.5),
        "values": floats(),
        "advantages": floats(),
        "returns": floats(),
        "step_label": torch.tensor([-1.0, 1.0, 0.0]).repeat(count)[:count],
        "entropies": torch.rand(count, generator=torch.Generator().manual_seed(seed + 100)),
    }
    rows = {
        "scores": floats(size=len(LENGTHS)),
        "environment_reward": floats(size=len(LENGTHS)),
        "turns": torch.ones(len(LENGTHS), dtype=torch.int64),
        "position": torch.tensor(POSITIONS),
        "label": torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0]),
        "kl_baseline": torch.full((len(LENGTHS),), 0.3),
        "finished": torch.tensor([True] * 5 + [False, True, False]),
    }
    return Columns(sequences).with_tokens(**tokens).with_rows(**rows)


def with_replies(made: Columns, seed: int = 0) -> Columns:
    """The columns of the same sampled tokens, after most of which an environment replied with up to two tokens."""
    draw = torch.Generator().manual_seed(seed)
    pairs, flags = [], list[bool]()
    for i, length in enumerate(made.lengths.tolist()):
        row, begin = made.sequences.row(i).tolist(), int(made.sequences.prompt_lengths[i])
        after = list[int]()
        for place, count in enumerate(torch.randint(0, 3, (length,), generator=draw).tolist()):
            replied = [3] * (count if place + 1 < length else 0)
            after += [row[begin + place], *replied]
            flags += [True, *[False] * len(replied)]
        pairs.append((row[:begin], after))
    sequences = replace(Sequences.pack(pairs), sampled=torch.tensor(flags), kept=made.sequences.kept)
    return replace(made, sequences=sequences)


def lists(made: Columns, name: str) -> list[list[float]]:
    """A column of tokens in double precision, response by response."""
    return [part.tolist() for part in made[name].double().split(made.lengths.tolist())]


def groups(made: Columns) -> dict[int, list[int]]:
    """Rows of each prompt."""
    by_position: dict[int, list[int]] = {}
    for row, position in enumerate(made["position"].tolist()):
        by_position.setdefault(position, []).append(row)
    return by_position

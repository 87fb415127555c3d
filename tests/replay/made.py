"""Episodes for tests to keep, sample and write."""

import torch

from rlhf_trainer.records import Experience, Sequences
from rlhf_trainer.replay.table import Episode

LENGTHS = ((2, 3), (1, 1), (4, 2), (3, 5))
"""Tokens of each prompt and of its answer."""


def words(sequences: Sequences) -> tuple[list[str], list[str]]:
    """In place of a tokenizer: tokens as numbers."""
    prompts, answers = [], []
    for i, length in enumerate(sequences.prompt_lengths.tolist()):
        tokens = [str(token) for token in sequences.row(i).tolist()]
        prompts.append(" ".join(tokens[:length]))
        answers.append(" ".join(tokens[length:]))
    return prompts, answers


def episode(
    number: int, *, lengths: tuple[tuple[int, int], ...] = LENGTHS, trained: int | None = None
) -> Episode:
    draw = torch.Generator().manual_seed(number)
    pairs = [
        (
            torch.randint(0, 50_000, (p,), generator=draw).tolist(),
            torch.randint(0, 50_000, (a,), generator=draw).tolist(),
        )
        for p, a in lengths
    ]
    sequences = Sequences.pack(pairs)
    answers = int(sequences.response_lengths.sum())

    def floats(count: int = answers) -> torch.Tensor:
        return torch.randn(count, generator=draw)

    experience = Experience(
        sequences=sequences,
        sampled_logprobs=floats(),
        logprobs=floats(),
        reference_logprobs=floats(),
        values=floats(),
        advantages=floats(),
        returns=floats(),
        versions=torch.randint(0, 9, (answers,), generator=draw),
        scores=floats(len(lengths)),
    )
    first = number * len(lengths)
    return Episode(
        number=number,
        prompt_ids=tuple(f"0/{first + i}" for i in range(len(lengths))),
        positions=torch.arange(first, first + len(lengths)),
        finished=torch.tensor([i % 2 == 0 for i in range(len(lengths))]),
        experience=experience,
        trained=trained,
    )


def same(one: Experience, other: Experience) -> bool:
    """Bit for bit, NaN and -0.0 too."""

    def bits(experience: Experience) -> list[torch.Tensor]:
        own = [v for name, v in vars(experience).items() if name != "sequences"]
        sequences = experience.sequences
        floats = [v.view(torch.int32) if v.dtype == torch.float32 else v for v in own]
        return [*floats, sequences.tokens, sequences.lengths, sequences.prompt_lengths]

    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(bits(one), bits(other), strict=True))

"""Episodes for tests to keep, sample and write."""

from dataclasses import replace

import torch

from rlhf_trainer.replay.table import Episode
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

LENGTHS = ((2, 3), (1, 1), (4, 2), (3, 5))
"""Tokens of each prompt and of its answer."""
PACKED = ("tokens", "lengths", "prompt_lengths")


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

    named = ("sampled_logprobs", "logprobs", "reference_logprobs", "values", "advantages", "returns")
    tokens = {name: floats() for name in named}
    tokens["versions"] = torch.randint(0, 9, (answers,), generator=draw)
    scores = floats(len(lengths))
    first = number * len(lengths)
    rows = {
        "scores": scores,
        "position": torch.arange(first, first + len(lengths)),
        "finished": torch.tensor([i % 2 == 0 for i in range(len(lengths))]),
    }
    return Episode(
        number=number,
        prompt_ids=tuple(f"0/{first + i}" for i in range(len(lengths))),
        columns=Columns(sequences, tokens, rows),
        trained=trained,
    )


FLAGS = ((True, False, True), (True,), (True, True), (True, False, False, True, True))
"""Which tokens of each answer were sampled, where an environment replied."""


BRANCHES = torch.arange(sum(map(len, FLAGS))) == 7
"""The last one's second token begins a branch."""


def with_replies(whole: Episode) -> Episode:
    """The episode of LENGTHS, some of whose answers' tokens are an environment's."""
    flags = torch.tensor([flag for row in FLAGS for flag in row])
    columns = whole.columns
    sequences = replace(columns.sequences, sampled=flags, branches=BRANCHES)
    tokens = {name: column[flags] for name, column in columns.tokens.items()}
    made = Columns(sequences, tokens, columns.rows)
    rewards = torch.zeros(int(flags.sum()))
    rewards[[0, -1]] = torch.tensor([0.5, 1.0])
    made = made.with_tokens(turn_rewards=rewards)
    made = made.with_rows(environment_reward=columns["scores"] / 2, turns=torch.tensor([2, 1, 1, 2]))
    return replace(whole, columns=made)


def same(one: Columns, other: Columns) -> bool:
    """The same columns, bit for bit, NaN and -0.0 too."""

    def bits(columns: Columns) -> dict[str, torch.Tensor]:
        own = {**columns.tokens, **{f"{name} of rows": column for name, column in columns.rows.items()}}
        floats = {n: v.view(torch.int32) if v.dtype == torch.float32 else v for n, v in own.items()}
        named = {name: getattr(columns.sequences, name) for name in ("sampled", "branches")}
        named["routing"] = columns.sequences.routing
        flags = {f"{name} of sequences": each for name, each in named.items() if each is not None}
        return {**floats, **flags, **{name: vars(columns.sequences)[name] for name in PACKED}}

    mine, others = bits(one), bits(other)
    return mine.keys() == others.keys() and all(
        mine[name].dtype == others[name].dtype and torch.equal(mine[name], others[name]) for name in mine
    )

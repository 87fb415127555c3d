"""Bytes of the responses, finished or partial, that belong to no episode yet: a blob of a snapshot."""

from array import array
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch

from ...tensors.expert_rows import ExpertRows, pack_rows
from ...tensors.packed import flat_flags, flat_floats, flat_int32s
from ...tensors.records import Outcome, Prompt
from ...tensors.sampling_mask import filled
from ...transport import wire
from ..partial_rollout import PartialRollout, Response

BLOB = "responses-ahead"
"""Its name."""


def encode(works: Iterable[PartialRollout]) -> bytes:
    """Responses by the ids of their prompts: int32 `tokens` and `versions` and float32 `logprobs`, end to end; int32
    `prompts`, their tokens, `kept_counts` and `kept` where tokens have sampling masks, int16 `experts` [n, L, K] and
    int64 `expert_counts`, their number in each response, where these have some, and bool `sampled` where some are
    context tokens."""
    works = list(works)
    responses = [response for work in works for response in work.responses]
    arrays = {
        "tokens": flat_int32s(r.tokens for r in responses),
        "logprobs": flat_floats(r.logprobs for r in responses),
        "versions": flat_int32s(r.versions for r in responses),
        "prompts": flat_int32s(work.prompt.tokens for work in works),
    }
    if any(r.kept_counts for r in responses):
        arrays |= {
            "kept_counts": flat_int32s(filled(r.kept_counts, len(r.tokens)) for r in responses),
            "kept": flat_int32s(r.kept for r in responses),
        }
    counts = [len(r.experts) for r in responses]
    if (experts := pack_rows([(r.experts, len(r.experts)) for r in responses])) is not None:
        arrays |= {"experts": experts, "expert_counts": torch.tensor(counts)}
    if (sampled := flat_flags([(r.sampled, len(r.tokens)) for r in responses])) is not None:
        arrays["sampled"] = sampled
    layouts = [[work.prompt.id, [_layout(r) for r in work.responses]] for work in works]
    return wire.encode(arrays, {"works": layouts, "prompts": [len(work.prompt.tokens) for work in works]})


def decode(data: bytes) -> list[PartialRollout]:
    """Inverse of `encode`; prompts have ids and tokens only, in data of an earlier release ids alone. Raises ValueError
    for invalid data."""
    arrays, header = wire.decode(data)
    lengths = header.get("prompts", [0] * len(header["works"]))
    prompts = arrays.get("prompts", torch.zeros(0)).split(lengths)
    at, kept_at, works = 0, 0, list[PartialRollout]()
    counts, kept_tokens = (arrays.get(name, torch.zeros(0)).tolist() for name in ("kept_counts", "kept"))
    flags = arrays.get("sampled", torch.zeros(0)).tolist()
    experts = iter(arrays["experts"].split(arrays["expert_counts"].tolist()) if "experts" in arrays else ())
    for (prompt_id, responses), prompt in zip(header["works"], prompts, strict=True):
        work = PartialRollout(Prompt(prompt_id, tuple(prompt.tolist()), {}), [])
        for length, end, *more in responses:
            tokens, logprobs, versions = (
                array(kind, arrays[name][at : at + length].tolist())
                for name, kind in (("tokens", "i"), ("logprobs", "f"), ("versions", "i"))
            )
            own = array("i", counts[at : at + length])
            size = sum(count for count in own if count > 0)
            masks = array("i", kept_tokens[kept_at : kept_at + size])
            sampled = array("b", map(int, flags[at : at + length]))
            response = Response(
                *(tokens, logprobs, versions, end, own, masks),
                sampled=array("b") if all(sampled) else sampled,
                branches=array("i", *more[1:]),
                outcome=_outcome(more[0]) if more and more[0] else None,
                experts=ExpertRows(rows.numpy() for rows in islice(experts, 1) if len(rows)),
            )
            work.responses.append(response)
            at, kept_at = at + length, kept_at + size
        works.append(work)
    return works


def _layout(response: Response) -> list[Any]:
    """Length and end of a response; how its episode ended if it is one that has; and its branches if it has any."""
    outcome = None if response.outcome is None else asdict(response.outcome)
    more = [outcome, [*response.branches]] if response.branches else [outcome] if outcome else []
    return [len(response.tokens), response.end, *more]


def _outcome(saved: dict[str, Any]) -> Outcome:
    rewards = tuple((index, reward) for index, reward in saved.pop("turn_rewards"))
    return Outcome(**saved, turn_rewards=rewards)

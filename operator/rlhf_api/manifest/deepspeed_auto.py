"""DeepSpeed's batching keys and `auto`, as a manifest's file may have them, in terms of our fields.

DeepSpeed has train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks
(https://www.deepspeed.ai/docs/config-json). The first is our minibatch, or a step's rows where responses are given; the
second, times the longest sequence, is `microBatchTokens`; the third follows. `auto` is what is left out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from ..algorithms import CUSTOM, algorithm_of
from ..errors.problem import Problem, show
from ..estimate.duration import Batch
from ..sections.deepspeed import SECTIONS, Section
from ..spec import Spec

KEYS = BATCH, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
AUTO = "auto"
_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}
Path = tuple[str, ...]


def in_our_fields(document: Any, read: Callable[[Any], Spec | None]) -> tuple[Any, list[Problem]]:
    """Replaces DeepSpeed's batching keys by fields of ours. Problems, with the sums, where keys contradict each other
    or our fields in the document. `read` makes a spec of as much of a document as it can. Where it makes none, and in
    algorithms of one's own, which have their own minibatches, batching keys stay."""
    given = {
        section: config
        for section in SECTIONS
        if isinstance(config := _at(document, _path(section)), Mapping)
    }
    bare = document
    for section, config in given.items():
        remainder = {key: value for key, value in config.items() if key not in KEYS}
        bare = _with(bare, _path(section), _without_auto(remainder))
    spec = read(bare) if bare != document else None
    if spec is None:
        return document, []
    problems: list[Problem] = []
    for section, config in given.items():
        bare = _switched(bare, spec, section, config)
        keys = {key: config[key] for key in KEYS if config.get(key, AUTO) != AUTO}
        if algorithm_of(spec) is CUSTOM:
            bare = _with(bare, _path(section), {**_at(bare, _path(section)), **keys})
            continue
        for result in _sums(spec, section, keys):
            if isinstance(result, Problem):
                problems.append(result)
            elif (current := _at(bare, result.field)) is None:
                bare = _with(bare, result.field, result.value)
            elif current != result.value:
                contradiction = f"{result.words}, and {'.'.join(result.field)} is {show(current)}"
                message = f"{contradiction}; make them equal, or remove one"
                problems.append(Problem(section.where(result.key), message))
    return bare, problems


def _switched(bare: Any, spec: Spec, section: Section, config: Mapping[str, Any]) -> Any:
    """Resolves `enabled: auto` by the model's dtype; a precision that is off is removed."""
    for kind, dtype in _PRECISION.items():
        if _at(config, (kind, "enabled")) == AUTO:
            on = spec.trained_dtype(section.model) == dtype
            rest = _at(bare, (*_path(section), kind)) or {}
            bare = _with(bare, (*_path(section), kind), {**rest, "enabled": True} if on else None)
    return bare


@dataclass(frozen=True)
class _Value:
    """Value of a field of ours that follows from a key; `words`: the arithmetic."""

    key: str
    field: Path
    value: int
    words: str


def _sums(spec: Spec, section: Section, keys: Mapping[str, Any]) -> Iterator[_Value | Problem]:
    wrong = [key for key, value in keys.items() if type(value) is not int or value < 1]
    for key in wrong:
        message = f"must be a whole number from 1 on, or auto; got {show(keys[key])}"
        yield Problem(section.where(key), message)
    if wrong:
        return
    size, micro, steps = (keys.get(key) for key in KEYS)
    ranks = max(1, spec.trainer.ranks // spec.trainer.sequence_parallel_size)
    words = f"an update is {size} samples"
    if micro and steps:
        product = micro * steps * ranks
        words = f"{micro} samples x {steps} steps x {ranks} data-parallel ranks = {product}"
        if size not in (None, product):
            yield Problem(section.where(BATCH), f"must equal {words}; got {size}")
            return
        size = product
    elif steps and size:
        micro, rest = divmod(size, steps * ranks)
        if rest:
            message = f"{size} samples are not divisible by {steps} steps x {ranks} data-parallel ranks"
            yield Problem(section.where(STEPS), f"{message}; use another {BATCH}; got {steps}")
            return
    elif steps:
        message = f"follows from the others: give {BATCH} or {MICRO} too, or remove this; got {steps}"
        yield Problem(section.where(STEPS), message)
    sampled = spec.graph.generates
    if size:
        own = ("spec", to_camel(spec.algorithm), section.minibatch)
        field = own if sampled else ("spec", "data", "promptsPerStep")
        yield _Value(BATCH if BATCH in keys else STEPS, field, size, words)
    if micro:
        batch = Batch.of(spec)
        sequences = micro * (1 if sampled else batch.count // spec.data.prompts_per_step)
        tokens = -(-sequences * int(batch.tokens) // spec.trainer.sequence_parallel_size)
        words = f"{sequences} sequences of up to {int(batch.tokens)} tokens are {tokens} tokens of a rank"
        yield _Value(MICRO if MICRO in keys else STEPS, ("spec", "trainer", section.tokens), tokens, words)


def _path(section: Section) -> Path:
    return ("spec", "trainer", section.name)


def _at(node: Any, path: Path) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _with(node: Any, path: Path, value: Any) -> Any:
    """A copy with the value at a path, without its last key where that is None; unless a value is in the way."""
    if not isinstance(node, Mapping):
        return node
    key, rest = path[0], path[1:]
    below = _with(node.get(key) or {}, rest, value) if rest else value
    return {k: v for k, v in {**node, key: below}.items() if k != key or v is not None}


def _without_auto(node: Any) -> Any:
    """Objects without the keys whose value is auto, and without those that held nothing else."""
    if not isinstance(node, Mapping):
        return node
    remainder = {key: _without_auto(value) for key, value in node.items() if value != AUTO}
    return {key: value for key, value in remainder.items() if value != {} or node[key] == {}}

"""Operations of a user's own algorithm: what they raise, or return in place of columns and losses, ends the job with
their name and the line. One of ours raises too where columns or settings are not those that it reads."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.imports import described
from rlhf_api.rules.own_algorithm import WHERE

from ..process.imports import import_function
from ..tensors.batches import Loss, MicroBatch, OutputFn
from ..tensors.columns import Columns
from .context import ComputeFn, LossFn, OpContext

OF_THE_MACHINE = (OSError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, distributed.DistError)
"""Errors of the machine and not of a user's function: they end the process, and its host restarts it."""


def guarded_compute(path: str, function: ComputeFn) -> ComputeFn:
    """A Compute node's function: (columns, context) -> the columns with those that it writes."""

    def compute(columns: Columns, ctx: OpContext) -> Columns:
        with _blamed(path), torch.no_grad():
            made: object = function(columns, ctx)
        _check_state(path, ctx)
        if not isinstance(made, Columns):
            raise _wrong(path, f"returned a {_kind(made)}, not Columns such as columns.with_rows(...)")
        if made.sequences is not columns.sequences:
            counts = f"{len(made)} other sequences than the {len(columns)} it was given"
            raise _wrong(
                path, f"returned columns of {counts}; give those that are not to train a weight of 0"
            )
        for name, column in {**made.tokens, **made.rows}.items():
            if name not in columns:
                _check_column(path, name, column)
        return made

    return compute


def guarded_loss(path: str, function: LossFn) -> LossFn:
    """A Train node's loss: (columns of a minibatch, context) -> the loss of its micro-batches."""

    def of_minibatch(columns: Columns, ctx: OpContext) -> Loss:
        with _blamed(path):
            loss: object = function(columns, ctx)
        _check_state(path, ctx)
        if not callable(loss):
            raise _wrong(
                path, f"returned a {_kind(loss)}, not a function (output, micro) of each micro-batch"
            )

        def of_micro_batch(output: Tensor, micro: MicroBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
            with _blamed(path):
                result = loss(output, micro)
            return _checked(path, result, output)

        return of_micro_batch

    return of_minibatch


def guarded_output(path: str, function: OutputFn) -> OutputFn:
    """The function by which a node reads a model's output, with its results checked: (logits, micro-batch) ->
    values."""

    def output(logits: Tensor, micro: MicroBatch) -> Tensor:
        with _blamed(path):
            result: object = function(logits, micro)
        if not isinstance(result, Tensor):
            raise _wrong(path, f"returned a {_kind(result)}, not a tensor")
        return result

    return output


def own_function(path: str, parameters: str) -> Callable[..., Any]:
    """The function `module:name`. Raises InvalidJob if it cannot be imported, or called with the `parameters`, two."""
    function = import_function(path, WHERE)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        signature = f"has the parameters {inspect.signature(function)}; it is called with {parameters}"
        raise _wrong(path, signature) from None
    except ValueError:  # of a builtin, which has none
        pass
    return function


@contextmanager
def _blamed(path: str) -> Iterator[None]:
    try:
        yield
    except (InvalidJob, *OF_THE_MACHINE):
        raise
    except Exception as error:
        raise _wrong(path, f"raised {described(error)}") from error


def _check_column(path: str, name: str, column: Tensor) -> None:
    """Raises InvalidJob for a column that a checkpoint would not restore as it is."""
    required = torch.bool if name == "mask" else torch.float32
    if column.dtype != required or column.device.type != "cpu":
        written = f"wrote column {name!r} as {column.dtype} on {column.device}"
        raise _wrong(path, f"{written}; columns must be float32 on the CPU, except a bool 'mask'")


def _check_state(path: str, ctx: OpContext) -> None:
    try:
        json.dumps(ctx.state)
    except (TypeError, ValueError) as error:
        message = f"put a value into ctx.state that JSON, the format of checkpoints, cannot hold: {error}"
        raise _wrong(path, message) from None


def _checked(path: str, result: object, output: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A micro-batch's loss and named numbers. Raises InvalidJob for anything else, and for a loss that trains nothing
    as it does not come from the model's output; a loss of 0 may be a constant."""
    match result:
        case (Tensor(ndim=0) as loss, Mapping() as numbers):
            if output.requires_grad and not loss.requires_grad and bool(loss):
                raise _wrong(path, f"returned a loss of {float(loss):.4g} without a gradient: detached?")
            return loss, {name: _number(path, name, value) for name, value in numbers.items()}
        case (Tensor(shape=shape), Mapping()):
            raise _wrong(path, f"returned a loss of shape {tuple(shape)}; sum it up to one number")
        case _:
            raise _wrong(path, f"returned a {_kind(result)}, not (loss, {{name: number}}) of a micro-batch")


def _number(path: str, name: str, value: object) -> Tensor:
    number = torch.as_tensor(value) if isinstance(value, int | float) else value
    if not isinstance(number, Tensor) or number.ndim:
        shape = f" of shape {tuple(number.shape)}" if isinstance(number, Tensor) else ""
        raise _wrong(path, f"returned a {_kind(number)}{shape} as {name!r} beside its loss, not one number")
    return number


def _kind(value: object) -> str:
    return type(value).__name__


def _wrong(path: str, message: str) -> InvalidJob:
    return InvalidJob([Problem(WHERE, f"{path!r} {message}")])

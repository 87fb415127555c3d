"""Context of an operation: the job's settings, the training step, the algorithm's running state."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.spec import Spec

from ..batches import Loss
from ..records import Columns

Operation = TypeVar("Operation")


@dataclass
class OpContext:
    """Arguments of an operation besides its columns.

    `settings`: the manifest's section of the algorithm. `state`: running values as JSON (an adaptive coefficient,
    running moments), the same on every rank, part of each snapshot, modified in place by operations.
    """

    spec: Spec
    settings: Any
    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restores the running state from a snapshot's JSON; a snapshot of an earlier release without it resets the
        state.
        """
        self.state = dict(snapshot.get("algorithm") or {})


ComputeFn = Callable[[Columns, OpContext], Columns]
"""(columns, context) -> the columns with those that the node writes; pure except for `OpContext.state`."""
LossFn = Callable[[Columns, OpContext], Loss]
"""(columns of a minibatch, context) -> its loss, as weighted sums over micro-batches."""


def find(table: Mapping[str, Operation], key: str) -> Operation:
    """The operation of a key in the table, or the function that `module:name` names.

    Raises InvalidJob for an unknown key.
    """
    if key in table:
        return table[key]
    module, separator, name = key.partition(":")
    if not separator:
        message = (
            f"the graph names {key!r}, which is none of {', '.join(table)}, nor a function as module:name"
        )
        raise InvalidJob([Problem("spec.algorithm", message)])
    try:
        found: Operation = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise any exception
        message = f"{key!r} cannot be imported: {type(error).__name__}: {error}"
        raise InvalidJob([Problem("spec.algorithm", message)]) from error
    return found

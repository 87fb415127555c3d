"""Context of an operation: the job's settings, the training step, the algorithm's running state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.spec import Spec

from ..batches import Loss
from ..imports import import_function
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

    Raises InvalidJob for an unknown key, and for a name that is not a function that can be imported.
    """
    if key in table:
        return table[key]
    if ":" not in key:
        message = (
            f"the graph names {key!r}, which is none of {', '.join(table)}, nor a function as module:name"
        )
        raise InvalidJob([Problem("spec.algorithm", message)])
    return cast("Operation", import_function(key, "spec.algorithm"))

"""Context of an operation: the job's settings, the training step, the algorithm's running state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from rlhf_api.spec import Spec

from ..tensors.batches import Loss
from ..tensors.columns import Columns

S_co = TypeVar("S_co", covariant=True, default=Any)
"""Section of the algorithm; any where it is not named."""


@dataclass
class OpContext(Generic[S_co]):
    """Arguments of an operation besides its columns.

    `settings`: the manifest's section of the algorithm. `state`: running values as JSON (an adaptive coefficient,
    running moments), the same on every rank, part of each snapshot, modified in place by operations.
    """

    spec: Spec
    settings: S_co
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

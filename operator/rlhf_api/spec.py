"""`spec` of an RLHFJob: what all jobs have, and a section for each algorithm that has settings."""

import difflib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, WithJsonSchema, create_model

from .algorithms import ALGORITHMS, CUSTOM, algorithm_of, settings_of
from .field_types import OBJECT, Frozen
from .graph import Graph
from .sections.common import CommonSpec


def _check_algorithm(name: str) -> str:
    if name in ALGORITHMS or re.fullmatch(OBJECT, name):
        return name
    close = difflib.get_close_matches(name.lower(), ALGORITHMS, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else ""
    raise ValueError(f"must be one of {', '.join(ALGORITHMS)}, or module:name of your own{hint}")


AlgorithmName = Annotated[
    str,
    AfterValidator(_check_algorithm),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(ALGORITHMS)}|{OBJECT})$"}),
]
"""An entry of `rlhf_api.algorithms.ALGORITHMS`, or an algorithm of one's own as `module:name`."""


if TYPE_CHECKING:
    Sections = Frozen
else:
    _TABLE = {a.section: a.settings for a in (*ALGORITHMS.values(), CUSTOM) if a.settings}
    Sections = create_model(
        "Sections", __base__=Frozen, **{name: (model, model()) for name, model in _TABLE.items()}
    )


class Spec(CommonSpec, Sections):
    """An RLHF run."""

    algorithm: AlgorithmName
    """`sft`, `reward` (a reward model), `process_reward` (one of steps), `dpo`, `kto`, `online_dpo`, `ppo`, `grpo`,
    `dr_grpo`, `rloo`, `reinforce_pp`, `gspo`, `cispo`, `distillation`, or your own as `module:name`. Its settings are
    in the section of its name, `custom` for your own."""

    @cached_property
    def graph(self) -> Graph:
        """The dataflow graph of the job."""
        return algorithm_of(self).graph(self, settings_of(self))

    def __copy__(self) -> Self:
        """Returns a copy without the graph, which `model_copy` may be about to change."""
        copied = super().__copy__()
        copied.__dict__.pop("graph", None)
        return copied

"""The contract of an RLHF job: its manifest, the configuration of its roles, and its status.

Other code imports these names from the package itself (docs/guides/extending.md); modules behind it may
move. Each is imported when it is first asked for: a process that needs none waits for none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms.base import Algorithm as Algorithm
    from .algorithms.dpo import DPO as DPO
    from .algorithms.policy_gradient import PolicyGradient as PolicyGradient
    from .algorithms.ppo import PPO as PPO
    from .errors.problem import Problem as Problem
    from .field_types import Fraction as Fraction
    from .field_types import Frozen as Frozen
    from .field_types import NonNegativeFloat as NonNegativeFloat
    from .field_types import Positive as Positive
    from .field_types import PositiveFloat as PositiveFloat
    from .graph import CRITIC as CRITIC
    from .graph import POLICY as POLICY
    from .graph import REFERENCE as REFERENCE
    from .graph import SEQUENCES as SEQUENCES
    from .graph import Compute as Compute
    from .graph import Dataset as Dataset
    from .graph import Generate as Generate
    from .graph import Graph as Graph
    from .graph import Infer as Infer
    from .graph import Score as Score
    from .graph import Train as Train
    from .sections.common import CommonSpec as CommonSpec
    from .spec import Spec as Spec

_MODULES = {
    "algorithms.base": ("Algorithm",),
    "algorithms.dpo": ("DPO",),
    "algorithms.policy_gradient": ("PolicyGradient",),
    "algorithms.ppo": ("PPO",),
    "field_types": ("Fraction", "Frozen", "NonNegativeFloat", "Positive", "PositiveFloat"),
    "graph": (
        *("Graph", "Generate", "Dataset", "Infer", "Score", "Compute", "Train"),
        *("POLICY", "CRITIC", "REFERENCE", "SEQUENCES"),
    ),
    "errors.problem": ("Problem",),
    "sections.common": ("CommonSpec",),
    "spec": ("Spec",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)

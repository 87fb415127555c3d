"""Specs of every algorithm, for tests of graphs and of what runs them."""

from pydantic.alias_generators import to_camel
from tests.unit.api.manifests import job

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.graph import Graph
from rlhf_api.spec import Spec

GROUPED = ("grpo", "dr_grpo", "rloo", "gspo", "cispo")
REFERRED = ("ppo", "reinforce_pp", *GROUPED)
"""May have a KL penalty, or none."""
ONLINE = (*REFERRED, "online_dpo", "distillation")
OFFLINE = ("sft", "reward", "process_reward", "dpo", "kto")


def spec_of(algorithm: str, settings: str = "", *overrides: str) -> Spec:
    """8 prompts and 32 responses a step; `settings` are the algorithm's own."""
    own = {"minibatchSize": "32"} if algorithm in ONLINE else {}
    own |= dict(part.split(": ", 1) for part in settings.split(", ") if part)
    section = ", ".join(f"{name}: {value}" for name, value in own.items())
    return job(
        "spec.ppo={}",
        f"spec.algorithm={algorithm}",
        *([f"spec.{to_camel(ALGORITHMS[algorithm].section)}={{{section}}}"] if own else []),
        *(["spec.sampling={responsesPerPrompt: 4}"] if algorithm in ONLINE else []),
        "spec.data.promptsPerStep=8",
        *(["spec.model.reference=org/teacher"] if algorithm == "distillation" else []),
        *overrides,
    ).spec


def graph(algorithm: str, settings: str = "", *overrides: str) -> Graph:
    return spec_of(algorithm, settings, *overrides).graph

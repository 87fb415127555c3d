"""Shared by the operator's tests: the shipped example, and the address of the trainer's stand-in."""

import copy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PPO = yaml.safe_load((ROOT / "examples" / "sentiment" / "ppo.yaml").read_text())
PODS = {"ppo-trainer-0", "ppo-generator-0", "ppo-reward-0", "ppo-reference-0"}
ADDRESS = "127.7.0.1"


def ppo(**spec: Any) -> dict[str, Any]:
    """The example with parts of its spec replaced."""
    return {**copy.deepcopy(PPO), "spec": {**copy.deepcopy(PPO["spec"]), **spec}}

"""What the tests of the operator share: the shipped example, and where the trainer that only talks is found."""

import copy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PPO = yaml.safe_load((ROOT / "examples" / "sentiment" / "ppo.yaml").read_text())
PODS = {"ppo-trainer-0", "ppo-generator-0", "ppo-reward-0", "ppo-reference-0"}
ADDRESS = "127.7.0.1"


def ppo(**spec: Any) -> dict[str, Any]:
    """The example with parts of its spec replaced."""
    return {**copy.deepcopy(PPO), "spec": {**copy.deepcopy(PPO["spec"]), **spec}}

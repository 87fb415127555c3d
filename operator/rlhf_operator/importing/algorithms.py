"""The algorithm that a configuration of another system means, and the settings that decide it."""

from collections.abc import Mapping
from typing import Any

from rlhf_api.errors.similar import plain

_ESTIMATORS = {
    "gae": "ppo",
    "grpo": "grpo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
    "reinforce": "reinforce_pp",
    "reinforce_baseline": "reinforce_pp",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp",
}
"""`adv_estimator` of verl and `advantage_estimator` of OpenRLHF -> our algorithm."""
OF_PRIME_RL = "dr_grpo"
"""Its advantage is the reward less the mean of the group."""
DECIDING = {
    plain(name)
    for name in (
        *(
            "adv_estimator",
            "advantage_estimator",
            "loss_mode",
            "policy_loss_type",
            "importance_sampling_level",
        ),
        *("scale_rewards", "norm_adv_by_std_in_grpo", "no_advantage_std_norm"),
    )
}
"""Names of settings that decide the algorithm."""


def normalizes_each(given: Mapping[str, Any]) -> bool:
    """True if each reward is normalised, as TRL then does by the group's deviation whatever `scale_rewards` says."""
    return given.get(plain("multi_objective_aggregation")) == "normalize_then_sum"


def algorithm_meant(given: Mapping[str, Any], algorithm: str) -> str:
    """The algorithm of settings by their last keys as `plain` has them; `algorithm`: what the file itself names, such
    as by its classes. "" if nothing says."""

    def has(name: str, *values: object) -> bool:
        value = given.get(plain(name), "")
        return any(value == each and type(value) is type(each) for each in values)

    estimator = given.get(plain("adv_estimator"), given.get(plain("advantage_estimator")))
    base = algorithm or _ESTIMATORS.get(str(estimator), "")
    if base != "grpo":
        return base
    if any("cispo" in (given.get(plain(name)),) for name in ("loss_type", "loss_mode")):
        return "cispo"
    if (
        has("importance_sampling_level", "sequence")
        or has("loss_mode", "gspo")
        or has("policy_loss_type", "gspo")
    ):
        return "gspo"
    if normalizes_each(given):
        return base
    unscaled = has("scale_rewards", False, "none") or has("norm_adv_by_std_in_grpo", False)
    return "dr_grpo" if unscaled or has("no_advantage_std_norm", True) else base

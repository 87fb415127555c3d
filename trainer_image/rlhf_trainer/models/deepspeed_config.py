"""The user's DeepSpeed configuration, completed with the trainer's settings."""

import copy
from collections.abc import Mapping
from typing import Any


def deepspeed_settings(
    user: Mapping[str, Any], adam: Mapping[str, Any], gradient_clip: float
) -> dict[str, Any]:
    """Configuration for `deepspeed.initialize`; `user`, a validated `DeepSpeedConfig.raw()`, is not
    modified."""
    settings = copy.deepcopy(dict(user))
    if "optimizer" in settings:
        settings["optimizer"]["params"] = {**adam, **settings["optimizer"].get("params", {})}

    zero = settings.setdefault("zero_optimization", {})
    # Stages 1 and 2 of DeepSpeed 0.19.8 lay the tensors out in another order then, and link names to the original one.
    zero.pop("round_robin_gradients", None)
    low_precision = any(settings.get(kind, {}).get("enabled") for kind in ("bf16", "fp16"))
    if low_precision:
        # Stage 0 keeps no float32 master weights in a form that can be saved and loaded; stage 1 computes the
        # same.
        zero["stage"] = max(1, zero.get("stage", 0))
    if settings.get("bf16", {}).get("enabled"):
        # The default accumulates in bfloat16, which loses small contributions of later micro-batches.
        settings.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    if "optimizer" not in settings:
        # Offloading works with torch's AdamW as well; DeepSpeed otherwise insists on its own, compiled at run
        # time.
        settings.setdefault("zero_force_ds_cpu_optimizer", False)
    return settings | {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": gradient_clip,
        "steps_per_print": None,
    }

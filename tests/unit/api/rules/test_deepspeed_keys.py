"""Our table of DeepSpeed's keys is the installed DeepSpeed's."""

import itertools
import json
import os
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rlhf_api.errors.other_names import OWNED
from rlhf_api.sections import deepspeed as ours

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed")
from deepspeed.runtime import constants
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)

LEFT_OUT = {
    # deprecated
    *(
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "stage3_gather_fp16_weights_on_model_save",
    ),
    # of DeepSpeed's checkpoints, which are not used, and of its internals
    *("load_from_fp32_weights", "elastic_checkpoint", "pipeline_loading_checkpoint", "legacy_stage1"),
    *(
        "compute_grad_norm",
        "override_module_apply",
        "enable_sanity_checks",
        "parameter_alignment",
        "leaf_module",
    ),
    # of optimizers other than ours
    *("zenflow", "save_muon_momentum_buffer_in_memory"),
}


pairs = pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (ours.BF16, DeepSpeedBF16Config),
        (ours.FP16, DeepSpeedFP16Config),
        (ours.ZeroOptimization, DeepSpeedZeroConfig),
        (ours.OffloadParam, DeepSpeedZeroOffloadParamConfig),
        (ours.OffloadOptimizer, DeepSpeedZeroOffloadOptimizerConfig),
    ],
    ids=lambda model: model.__name__,
)


@pairs
def test_sections_have_the_keys_of_deepspeed(mine: type[BaseModel], theirs: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in theirs.model_fields.items()}
    assert set(mine.model_fields) == known - LEFT_OUT


@pairs
def test_numbers_that_deepspeed_refuses_are_refused(mine: type[BaseModel], theirs: type[BaseModel]) -> None:
    switch: dict[str, Any] = {"enabled": True} if "enabled" in theirs.model_fields else {"device": "cpu"}
    switch = {key: value for key, value in switch.items() if key in theirs.model_fields}
    for key, value in itertools.product(mine.model_fields, (-1, 0, 1, 2, 0.5)):
        made = json.dumps({**switch, key: value})
        if not _reads(theirs, made):
            assert not _reads(mine, made), f"{key}: {value}"


def _reads(model: type[BaseModel], made: str) -> bool:
    try:
        model.model_validate_json(made)
    except ValidationError:
        return False
    return True


def test_top_level_keys_are_those_of_deepspeed() -> None:
    known = {value for value in vars(constants).values() if isinstance(value, str)}
    sections = {"zero_optimization", "activation_checkpointing", "comms_logger"}
    assert set(ours.DeepSpeedConfig.model_fields) - sections <= known
    assert set(OWNED) <= known


def test_counts_may_be_written_as_in_deepspeed_documentation() -> None:
    read = ours.ZeroOptimization.model_validate_json('{"stage": 2, "reduce_bucket_size": 5e8}')
    assert read.reduce_bucket_size == 500_000_000

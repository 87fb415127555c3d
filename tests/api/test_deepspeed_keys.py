"""Our table of DeepSpeed's keys is the installed DeepSpeed's."""

import os

import pytest
from pydantic import BaseModel

from rlhf_api import deepspeed as ours

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


@pytest.mark.parametrize(
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
def test_sections_have_the_keys_of_deepspeed(mine: type[BaseModel], theirs: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in theirs.model_fields.items()}
    assert set(mine.model_fields) == known - LEFT_OUT


def test_top_level_keys_are_those_of_deepspeed() -> None:
    known = {value for value in vars(constants).values() if isinstance(value, str)}
    sections = {"zero_optimization", "activation_checkpointing", "comms_logger"}
    assert set(ours.DeepSpeedConfig.model_fields) - sections <= known
    assert set(ours.OWNED) <= known


def test_counts_may_be_written_as_in_deepspeed_documentation() -> None:
    read = ours.ZeroOptimization.model_validate_json('{"stage": 2, "reduce_bucket_size": 5e8}')
    assert read.reduce_bucket_size == 500_000_000

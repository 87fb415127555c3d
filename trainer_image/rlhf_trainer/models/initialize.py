"""Initialises a model and its optimizer under DeepSpeed."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn import Module, Parameter
from torch.utils.cpp_extension import CUDA_HOME

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.optimizer import Optimizer

from .eight_bit import AdamW8bit
from .muon import check_engine, make_muon, step_eagerly
from .zero import deepspeed, groups, installed_ops


def initialize(model: Module, settings: dict[str, Any], adam: Mapping[str, Any], section: Optimizer) -> Any:
    """DeepSpeed's engine for `model`, on every rank's GPU, with the configuration of `deepspeed_settings`; torch's
    AdamW with the arguments `adam`, unless the configuration names an optimizer, or `section` asks for that of
    `make_muon` or for `AdamW8bit`. Raises InvalidJob for settings that DeepSpeed refuses, and for an optimizer that it
    compiles at its start, where this machine has nothing to compile it with."""
    groups = _parameter_groups(model, settings.get("optimizer", {}).get("params", adam)["weight_decay"])
    away = settings["zero_optimization"].get("offload_optimizer", {}).get("device", "none") != "none"
    fused = not (
        away and torch.cuda.is_available()
    )  # offloaded, its tensors are on CPUs and the model on a GPU
    optimizer: torch.optim.Optimizer | None = None
    muon = section.matrices == "muon"
    if muon:
        optimizer = make_muon(model, adam)
    elif section.moments == "8bit":
        optimizer = AdamW8bit(groups, adam)
        settings = {**settings, "zero_allow_untested_optimizer": True}
    elif "optimizer" not in settings:
        optimizer = torch.optim.AdamW(groups, **adam, fused=fused)
    _find_programs()
    if missing := missing_tools(settings, away=away):
        message = (
            f"DeepSpeed compiles its own {settings['optimizer']['type']} when the trainer starts, for which this "
            f"machine has no {' and no '.join(missing)}; set optimizer.params.torch_adam true, or leave optimizer "
            "out, for PyTorch's, or use an image that has it"
        )
        raise InvalidJob([Problem("deepspeed.optimizer.type", message)])
    with contextlib.redirect_stdout(sys.stderr), _refusals(), _architectures_of_here():
        if settings["zero_optimization"].get("stage") == 3:
            _divide(model, settings)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            model_parameters=None if optimizer else groups,
            config=settings,
            dist_init_required=False,
        )
    if muon:
        check_engine(engine)
        step_eagerly(engine)
    if hasattr(engine.optimizer, "get_grads_for_reduction") or (
        distributed.get_world_size() == 1 and not engine.zero_optimization()
    ):
        # The whole gradient is summed by `TrainedModel.update`, if by anybody: DeepSpeed would copy all of it, round
        # the copy to the type in which it is sent, and copy it back, with one rank too.
        engine.enable_backward_allreduce = False
    return engine


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turns DeepSpeed's assertions about combinations of settings into InvalidJob: a restart would end the same."""
    try:
        yield
    except (AssertionError, ValueError) as error:
        if not str(error):
            raise
        raise InvalidJob([Problem("deepspeed", f"is refused by DeepSpeed: {error}")]) from error


@contextlib.contextmanager
def _architectures_of_here() -> Iterator[None]:
    """Takes TORCH_CUDA_ARCH_LIST out of the environment where there are GPUs: DeepSpeed compiles for them alone.
    Images name many architectures, and of some, such as 9.0a, it cannot read the name."""
    given = os.environ.pop("TORCH_CUDA_ARCH_LIST", None) if torch.cuda.is_available() else None
    try:
        yield
    finally:
        if given is not None:
            os.environ["TORCH_CUDA_ARCH_LIST"] = given


def _find_programs() -> None:
    """Appends this Python's own programs to PATH: pip puts ninja there, and the environment need not be activated."""
    os.environ["PATH"] = os.pathsep.join(
        (os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    )


def missing_tools(settings: Mapping[str, Any], *, away: bool) -> list[str]:
    """Tools that this machine lacks and DeepSpeed needs to compile the configuration's optimizer; none for PyTorch's,
    or for one that DeepSpeed was built with. `away`: it is offloaded."""
    optimizer = settings.get("optimizer")
    if optimizer is None or optimizer.get("params", {}).get("torch_adam"):
        return []
    if installed_ops.get("cpu_adam" if away else "fused_adam"):
        return []
    tools = {os.environ.get("CXX", "c++"): "C++ compiler", "ninja": "ninja"}
    missing = [name for tool, name in tools.items() if shutil.which(tool) is None]
    if torch.cuda.is_available() and CUDA_HOME is None:
        missing.append("CUDA toolkit (CUDA_HOME)")
    return missing


def _parameter_groups(model: Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay for matrices, none for vectors (biases, norms)."""
    trained: list[Parameter] = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _divide(model: Module, settings: dict[str, Any]) -> None:
    """Partitions the model over the ranks, tensor by tensor; `deepspeed.initialize` would move the whole model to the
    GPU first.
    """
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if settings.get(kind, {}).get("enabled"):
            for parameter in model.parameters():  # as deepspeed.initialize does for whole models
                parameter.data = parameter.data.to(dtype)
    hierarchical = settings["zero_optimization"].get("zero_hpz_partition_size", 1) > 1
    # The process has one such group, which DeepSpeed makes with the first model and refuses to make again.
    group = groups._get_zero_param_intra_parallel_group() if hierarchical else None
    deepspeed.zero.Init(module=model, config_dict_or_path=settings, zero_param_parallel_group=group)
    device = deepspeed.get_accelerator().current_device_name()
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)

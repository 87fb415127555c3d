"""Exact training state as whole tensors, independent of the number of ranks and the ZeRO stage."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..tensors.records import Sequences
from .eight_bit import AdamW8bit
from .eight_bit_state import finish_moments, read_moment, write_moment
from .live_weights import LiveWeights
from .muon import has_momentum
from .trained_model import TrainedModel
from .zero import deepspeed

MASTER = "parameters"
MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTUM = ("momentum_buffer",)
LOSS_SCALE = "loss_scale"
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Fields that DeepSpeed's dynamic loss scaler changes from step to step."""


def training_state(engine: TrainedModel) -> Iterator[tuple[str, Tensor]]:
    """`step` (int64 scalar: optimizer steps taken), then float32 `parameters/<name>`, `exp_avg/<name>` and
    `exp_avg_sq/<name>` for every trained parameter, whole, always in the same order; for one of Muon
    `momentum_buffer/<name>` in place of both moments. With a dynamic loss scale
    (float16) `loss_scale` follows the step: float64 [4], in the order of `SCALER`.

    All ranks iterate in lockstep and get the same tensors; they may be the live state, so copy what you keep. The step
    is 0 and the moments are zero before the first update. Raises WrongSnapshot at the end, on every rank, where the
    parameters, rounded, are not the weights with which the model computes.
    """
    step, live = _step(engine), LiveWeights(engine.stage, engine.rank)
    if step:
        _link_moments(engine)
    yield "step", torch.tensor(step)
    if (scaler := _scaler(engine)) is not None:
        yield LOSS_SCALE, torch.tensor([getattr(scaler, name) for name in SCALER], dtype=torch.float64)
    for name, parameter in _trained(engine):
        master = _read(engine, parameter, None)
        live.compare(name, parameter, master)
        yield f"{MASTER}/{name}", master
        for moment in _moments(parameter):
            value = _read(engine, parameter, moment) if step else _zeros(parameter)
            yield f"{moment}/{name}", value
    live.check(engine.device)


def load_training_state(engine: TrainedModel, get: Callable[[str], Tensor]) -> None:
    """Inverse of `training_state`, for an engine made in the same way, whatever it holds by now; a collective.

    `get` returns the tensor of a name, on every rank, or raises LookupError if it is missing: states of releases
    without `loss_scale` resume with a fresh one. Training then continues as if it had never stopped. Raises ValueError
    where a tensor has another shape than the model's.
    """
    step = int(get("step"))
    # An engine that has moments already loads the zeros of a state from before the first update.
    if begun := step > 0 or _step(engine) > 0:
        _create_moments(engine)
        _link_moments(engine)
        _set_step(engine, step)
    for name, parameter in _trained(engine):
        _write(engine, parameter, None, _fitting(get, f"{MASTER}/{name}", parameter))
        for moment in _moments(parameter) if begun else ():
            _write(engine, parameter, moment, _fitting(get, f"{moment}/{name}", parameter))
    if isinstance(optimizer := _optimizer(engine), AdamW8bit):
        finish_moments(optimizer)
    _load_scaler(engine, get)


def _trained(engine: TrainedModel) -> list[tuple[str, Parameter]]:
    items = engine.state_items()
    return [(name, p) for name, p in items if isinstance(p, Parameter) and p.requires_grad]


def _shape(parameter: Parameter) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def _moments(parameter: Parameter) -> tuple[str, ...]:
    return MOMENTUM if has_momentum(parameter) else MOMENTS


def _zeros(parameter: Parameter) -> Tensor:
    return torch.zeros(_shape(parameter))


def _fitting(get: Callable[[str], Tensor], name: str, parameter: Parameter) -> Tensor:
    value = get(name)
    if value.shape != _shape(parameter):
        raise ValueError(
            f"the saved {name} has shape {tuple(value.shape)}, the model's {tuple(_shape(parameter))}"
        )
    return value


def _optimizer(engine: TrainedModel) -> torch.optim.Optimizer:
    """The Adam optimizer itself; under ZeRO it holds this rank's flat partitions."""
    outer = engine.deepspeed.optimizer
    adam: torch.optim.Optimizer = outer.optimizer if engine.stage else outer
    return adam


def _step(engine: TrainedModel) -> int:
    return next((int(state["step"]) for state in _optimizer(engine).state.values() if "step" in state), 0)


def _set_step(engine: TrainedModel, step: int) -> None:
    for state in _optimizer(engine).state.values():
        if "step" not in state:  # of Muon
            continue
        # torch stores a tensor, DeepSpeed's own Adams an int
        state["step"] = state["step"].fill_(step) if isinstance(state["step"], Tensor) else step


def _scaler(engine: TrainedModel) -> Any:
    """DeepSpeed's dynamic loss scaler; None for a fixed scale or none."""
    scaler = getattr(engine.deepspeed.optimizer, "loss_scaler", None)
    return scaler if getattr(scaler, "dynamic", False) else None


def _load_scaler(engine: TrainedModel, get: Callable[[str], Tensor]) -> None:
    """Restores the loss scaler, after `_create_moments`, which counts as a step."""
    if (scaler := _scaler(engine)) is None:
        return
    try:
        scale, *counts = get(LOSS_SCALE).tolist()
    except LookupError:
        return
    for name, value in zip(SCALER, (scale, *map(int, counts)), strict=True):
        setattr(scaler, name, value)


def _create_moments(engine: TrainedModel) -> None:
    """Creates Adam's moments, which its first step allocates, by a step that changes nothing: learning rate 0, gradient
    0.
    """
    nothing = Sequences.pack([((0,), (0,))])
    with torch.random.fork_rng():
        engine.update(nothing, lambda logits, _: logits[:0].float(), lambda out, _: (out.sum(), {}), 0.0)


def _link_moments(engine: TrainedModel) -> None:
    """Links the moments of all parameter groups once more. ZeRO-1 and -2 of DeepSpeed 0.19.8 link them when the first
    group has made its first step, when the second has none yet.
    """
    if engine.stage in (1, 2):
        engine.deepspeed.optimizer._hp_optimizer_states_linked = False
        engine.deepspeed.optimizer._lazy_init_hp_params_optimizer_state()


def _read(engine: TrainedModel, parameter: Parameter, moment: str | None) -> Tensor:
    if moment is not None and isinstance(optimizer := _optimizer(engine), AdamW8bit):
        return read_moment(engine, optimizer, parameter, moment)
    if not engine.stage:
        if moment is None:
            return parameter.detach()
        state = _optimizer(engine).state.get(parameter, {})  # torch makes none without a gradient
        return state[moment] if state else _zeros(parameter)
    if moment is None:
        whole: Tensor = deepspeed.utils.safe_get_full_fp32_param(parameter)
    else:
        whole = deepspeed.utils.safe_get_full_optimizer_state(parameter, moment)
    return whole


def _write(engine: TrainedModel, parameter: Parameter, moment: str | None, value: Tensor) -> None:
    value = value.to(engine.device)
    if moment is not None and isinstance(optimizer := _optimizer(engine), AdamW8bit):
        write_moment(engine, optimizer, parameter, moment, value)
    elif engine.stage == 3:
        _write_share(engine, parameter, moment, value)
    elif engine.stage:
        if moment is None:
            deepspeed.utils.safe_set_full_fp32_param(parameter, value)
        else:
            deepspeed.utils.safe_set_full_optimizer_state(parameter, value, moment)
    elif moment is not None and (state := _optimizer(engine).state.get(parameter)):
        state[moment].copy_(value)
    if moment is None:
        # The weights of the forward pass, rounded from the master weights as an optimizer step does.
        with (
            torch.no_grad(),
            deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=engine.stage == 3),
        ):
            parameter.copy_(value)


def _write_share(engine: TrainedModel, parameter: Parameter, moment: str | None, value: Tensor) -> None:
    """Writes this rank's partition under ZeRO-3. DeepSpeed's setter of whole tensors fails where the ranks do not
    divide the elements, because the last partition is padded.
    """
    # Not `numel`, 1 of a partition on a disk: its first element would become all of them.
    share = parameter.ds_tensor.ds_numel  # type: ignore[attr-defined]  # DeepSpeed's
    padded = torch.nn.functional.pad(value.flatten(), (0, share * engine.world_size - value.numel()))
    mine = padded[share * engine.rank : share * (engine.rank + 1)]
    if moment is None:
        deepspeed.utils.safe_set_local_fp32_param(parameter, mine)
    else:
        deepspeed.utils.safe_set_local_optimizer_state(parameter, mine, moment)

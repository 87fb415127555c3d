"""Moments in 8 bits as whole float32 tensors: what DeepSpeed's access to an optimizer's state does for float32."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Parameter
from torch.nn.functional import pad

from .eight_bit import AdamW8bit, Moment
from .trained_model import TrainedModel


@dataclass(frozen=True)
class _Share:
    """The part of a parameter of which this rank has the moments."""

    moments: dict[str, Any]
    start: int
    """Its first element in these."""
    first: int
    """Its first element in the parameter, flattened."""
    count: int
    """Elements; at stage 3 with the padding behind the parameter's last."""


def read_moment(engine: TrainedModel, optimizer: AdamW8bit, parameter: Parameter, name: str) -> Tensor:
    """The moment `name` of a parameter, in its whole shape, on every rank; a collective."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    whole, share = torch.zeros(shape, device=engine.device), _share(engine, optimizer, parameter)
    count = min(share.count, whole.numel() - share.first) if share and share.moments else 0
    if share and count > 0:
        whole.view(-1)[share.first :][:count] = share.moments[name].read(share.start, count)
    if engine.stage:
        distributed.all_reduce(whole)
    return whole


def write_moment(
    engine: TrainedModel, optimizer: AdamW8bit, parameter: Parameter, name: str, value: Tensor
) -> None:
    """Writes this rank's part of a whole float32 moment; `finish_moments` comes after the last."""
    share = _share(engine, optimizer, parameter)
    if share and share.moments and share.count:
        mine = value.flatten()[share.first :][: share.count]
        share.moments[name].write(share.start, pad(mine, (0, share.count - len(mine))))


def finish_moments(optimizer: AdamW8bit) -> None:
    """Writes the blocks that parameters share."""
    for state in optimizer.state.values():
        for moment in state.values():
            if isinstance(moment, Moment):
                moment.finish()


def _share(engine: TrainedModel, optimizer: AdamW8bit, parameter: Any) -> _Share | None:
    """This rank's share; None where it has nothing of the parameter."""
    if engine.stage == 0:
        return _Share(optimizer.state.get(parameter, {}), 0, 0, parameter.numel())
    if engine.stage == 3:
        outer = engine.deepspeed.optimizer
        group, start, count = outer.grad_position[outer.get_param_id(parameter)]
        flat = outer.fp32_partitioned_groups_flat[group]
        return _Share(optimizer.state.get(flat, {}), start, engine.rank * count, count)
    if (mapping := parameter._hp_mapping) is None:
        return None
    (flat,) = optimizer.param_groups[mapping.param_group_index]["params"]
    inside, of_parameter = mapping.hp_fragment_address, mapping.lp_fragment_address
    return _Share(optimizer.state.get(flat, {}), inside.start, of_parameter.start, inside.numel)

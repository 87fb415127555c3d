"""AdamW with both moments in 8 bits, by the kernels of bitsandbytes."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import pad

from rlhf_api.errors.problem import InvalidJob, Problem

WHERE = "spec.optimizer.moments"
BLOCK = 256
"""Elements that share a scale; the kernels have no other number."""
_ZERO = 127
"""Code of 0 among signed numbers."""
SLICE = 2**26
"""Elements of a call: a kernel counts them in 32 bits, and on a CPU it makes float32 copies of its moments."""


class AdamW8bit(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) whose moments are a `Moment` each. A step computes in
    float32 with the moments that it has just updated, and rounds them to 8 bits for the next one."""

    def __init__(self, groups: list[dict[str, Any]], adam: Mapping[str, Any]) -> None:
        """Raises InvalidJob where bitsandbytes is not installed."""
        _kernels()
        super().__init__(groups, dict(adam))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # there is no closure here
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Parameter, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                state[name] = Moment.zeros(parameter.numel(), _codebook(signed, parameter.device))
        state["step"] += 1
        first, second = state["exp_avg"], state["exp_avg_sq"]
        weights, gradient = parameter.data.reshape(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for start in range(0, len(weights), SLICE):
            part = slice(start, start + SLICE)
            blocks = slice(start // BLOCK, (start + SLICE) // BLOCK)
            _kernels().optimizer_update_8bit_blockwise(
                *("adam", gradient[part], weights[part], first.codes[part], second.codes[part]),
                *(*group["betas"], 0.0, 0.0, group["eps"], state["step"], group["lr"]),
                *(first.codebook, second.codebook, first.scales[blocks], second.scales[blocks]),
                weight_decay=group["weight_decay"],
            )
            # A square that is rounded to 0 beside a first moment that is not would make a step of any size, once the
            # gradient stays away.
            codes = second.codes[part]
            codes[(codes == 0) & (first.codes[part] != _ZERO)] = 1
        if not parameter.is_contiguous():  # whose numbers are updated in a copy
            parameter.data.copy_(weights.view(parameter.shape))


@dataclass
class Moment:
    """Numbers in 8 bits: uint8 `codes` [n], and float32 `scales` [ceil(n / BLOCK)], the largest magnitude of each block
    (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861, section 2). A number is its
    code's entry in the float32 `codebook` [256] times its block's scale."""

    codes: Tensor
    scales: Tensor
    codebook: Tensor
    _parts: dict[int, Tensor] = field(default_factory=dict)
    """Float32 blocks, by index, that `write` has not got whole."""

    @classmethod
    def zeros(cls, count: int, codebook: Tensor) -> "Moment":
        codes = torch.zeros(count, dtype=torch.uint8, device=codebook.device)
        scales = torch.zeros(-(-count // BLOCK), device=codebook.device)
        return cls(codes, scales, codebook)

    def read(self, start: int, count: int) -> Tensor:
        """Float32 [count] from the element `start` on."""
        blocks = slice(start // BLOCK, -(-(start + count) // BLOCK))
        values: Tensor = _kernels().dequantize_blockwise(
            self.codes[blocks.start * BLOCK : blocks.stop * BLOCK],
            absmax=self.scales[blocks],
            code=self.codebook,
            blocksize=BLOCK,
        )
        return values[start - blocks.start * BLOCK :][:count]

    def write(self, start: int, values: Tensor) -> None:
        """Inverse of `read`, bit for bit for what `read` gave. A block of which these values are a part is written by
        `finish`, once all of it is there: its scale is of all its elements."""
        end = start + len(values)
        whole = range(-(-start // BLOCK), end // BLOCK)
        if whole:
            self._round(whole.start, values[whole.start * BLOCK - start : whole.stop * BLOCK - start])
        for block in {start // BLOCK, (end - 1) // BLOCK}.difference(whole):
            part = self._parts.setdefault(block, torch.zeros(BLOCK, device=self.codes.device))
            offset = block * BLOCK
            low, high = max(start, offset), min(end, offset + BLOCK)
            part[low - offset : high - offset] = values[low - start : high - start]

    def finish(self) -> None:
        """Writes the blocks that came in parts."""
        for block, values in self._parts.items():
            self._round(block, values[: len(self.codes) - block * BLOCK])
        self._parts.clear()

    def _round(self, block: int, values: Tensor) -> None:
        """Writes whole blocks from this one on, each number as the nearest there is, of squares only 0 as 0.
        bitsandbytes does not on a CPU: of numbers below 2e-5 of a block's largest it takes others."""
        between = (self.codebook[1:] + self.codebook[:-1]) / 2
        for part in values.split(SLICE // 16):
            blocks = pad(part, (0, -len(part) % BLOCK)).view(-1, BLOCK)
            scales = blocks.abs().amax(dim=1)
            shares = blocks / scales.where(scales > 0, 1.0).unsqueeze(1)
            codes = torch.bucketize(shares, between, out_int32=True)
            if not self.codebook[0]:  # of squares: one that were 0 would make a step of any size
                codes[(codes == 0) & (shares > 0)] = 1
            codes = codes.flatten()[: len(part)]
            self.codes[block * BLOCK :][: len(part)] = codes.to(torch.uint8)
            self.scales[block:][: len(scales)] = scales
            block += len(scales)


@cache
def _codebook(signed: bool, device: torch.device) -> Tensor:
    """Dynamic-exponent numbers of `Moment`, ascending: float32 [256] in [-1, 1] or, unsigned, in [0, 1]."""
    numbers: Tensor = _kernels().create_dynamic_map(signed=signed)
    if signed:
        # In place of -0.993: a largest magnitude that is negative would shrink each time a block is rounded, and what a
        # checkpoint has would not be rounded to itself.
        numbers[0] = -1.0
    return numbers.to(device)


@cache
def _kernels() -> Any:
    """bitsandbytes, which only a job that asks for it imports."""
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # it misses packages for kernels that nothing here has
    try:
        from bitsandbytes import functional
    except ImportError as error:
        message = "is 8bit, but bitsandbytes is not installed; install it (pip install bitsandbytes), or use float32"
        raise InvalidJob([Problem(WHERE, message)]) from error
    return functional

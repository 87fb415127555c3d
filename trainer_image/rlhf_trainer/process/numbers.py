"""Numbers that a user's code returned, as plain floats. Imports no torch."""

import math
from numbers import Real
from typing import Any

from rlhf_api.errors.problem import show


def finite_number(value: Any, most: float) -> float:
    """The number itself, of Python, NumPy or torch, and of no subclass, whose methods might deny what it is. Raises
    ValueError, which says what it must be, for anything else and for what exceeds `most`."""
    if bool(getattr(value, "mask", False)):  # NumPy's masked entry, whose item is 0
        raise ValueError("must be a finite number; got a masked entry")
    single = value.item() if getattr(value, "ndim", None) == 0 else value  # of NumPy's arrays and of torch's
    try:
        number = float(single) if isinstance(single, Real) else math.nan
    except OverflowError:  # of an integer
        raise ValueError(_too_large(single, most)) from None
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number; got {show(single)}")
    if abs(number) > most:
        raise ValueError(_too_large(single, most))
    return number


def _too_large(value: Any, most: float) -> str:
    return f"must not exceed {most:.2g}; got {show(value)}"

"""Check of received tensors' names, shapes and dtypes against a served model."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from rlhf_api.estimate.model_files import tensor_entries

from ....weights.buckets import Spec

Table = Mapping[str, Spec]
WIDEST, SLACK_BYTES = 8, 64 << 20
"""Bytes of the widest number; of the alignment of tensors, and of a tiny model's adapter, which may exceed it."""

# safetensors' names of torch's dtypes
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def checkpoint_table(directory: Path) -> Table:
    """Tensors in the safetensors files of `directory`, read from their headers; empty if there are none."""
    table = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            entries = tensor_entries(file)
        for name, entry in entries.items():
            table[name] = Spec(name, _DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"]))
    return table


def architecture_table(config: PretrainedConfig) -> Table:
    """Parameters and persistent buffers of the Transformers model of `config`, whose names can differ from a
    checkpoint's (GPT-2); empty if Transformers lacks the model."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, ImportError):
        return {}
    saved = model.state_dict()
    tensors = dict(model.named_parameters())  # tied ones once
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: Spec.of(name, tensor) for name, tensor in tensors.items()}


def most_bytes(tables: Sequence[Table]) -> float:
    """Size above which what arrives is no update of the model, adapters of any rank included; without a table nothing
    is known."""
    sizes = [sum(math.prod(spec.shape) for spec in table.values()) for table in tables]
    return WIDEST * max(sizes) + SLACK_BYTES if sizes else math.inf


def check_fits(given: Sequence[Spec], tables: Sequence[Table], *, optional: frozenset[str]) -> None:
    """Raises ValueError naming the differences from the first table, unless `given` fits one of `tables`: the same
    names, except the `optional` ones, each with its shape and dtype (loading converts between floating-point dtypes).
    """
    differences = [_differences(given, table, optional) for table in tables]
    if all(differences) and differences:
        some, more = differences[0][:5], len(differences[0]) - 5
        raise ValueError(
            f"the weights do not fit the served model: {'; '.join(some)}{f' and {more} more' if more > 0 else ''}. "
            "Trainer and generators must start from the same model."
        )


def _differences(given: Sequence[Spec], table: Table, optional: frozenset[str]) -> list[str]:
    names: set[str] = set()
    problems = []
    for spec in given:
        want = table.get(spec.name)
        if spec.name in names:
            problems.append(f"{spec.name} came twice")
        elif want is None and spec.name not in optional:
            problems.append(f"{spec.name} {list(spec.shape)} is not in the model")
        elif want is not None and spec.shape != want.shape:
            problems.append(f"{spec.name} has shape {list(spec.shape)}, the model's has {list(want.shape)}")
        elif want is not None and spec.dtype != want.dtype and not (_floating(spec) and _floating(want)):
            problems.append(f"{spec.name} is {spec.dtype}, the model's is {want.dtype}")
        names.add(spec.name)
    return problems + [f"{name} did not come" for name in table if name not in names and name not in optional]


def _floating(spec: Spec) -> bool:
    return spec.dtype in ("float64", "float32", "float16", "bfloat16")

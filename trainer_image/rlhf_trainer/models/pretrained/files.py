"""Reads models, tokenizers and configurations of a directory or of the hub; whatever fails is one ValueError."""

import os
import stat
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils.peft_utils import find_adapter_config_file

from rlhf_api.host.model_directory import WITHOUT_HUB, config_problem, directory_problem, takes_pickles

from ...process import progress


def load_config(path: str) -> PreTrainedConfig:
    """Raises ValueError also where it names code of another repository."""
    config: PreTrainedConfig = from_pretrained(AutoConfig, path)
    if what := config_problem(PreTrainedConfig.get_config_dict(path)[0]):
        raise ValueError(f"cannot load {path!r}: {what}")
    return config


def load_model(kind: Any, path: str, *, trained_head: bool = True, **arguments: Any) -> PreTrainedModel:
    """A model of an Auto class. Each parameter that is made or filled, and what is downloaded, is a sign of progress.
    Raises ValueError where the files lack weights, which Transformers makes at random; those of the head may be lacking
    unless it is a `trained_head`."""
    if _is_adapter(path):
        raise ValueError(
            f"cannot load {path!r}: it is an adapter of another model; name one that it is merged into"
        )
    only = {} if takes_pickles() else {"use_safetensors": True}
    hook = register_module_parameter_registration_hook(lambda *_: progress.sign())
    try:
        with progress.growing(Path(HF_HUB_CACHE, f"models--{path.replace('/', '--')}")):
            model, loaded = from_pretrained(kind, path, output_loading_info=True, **only, **arguments)
    finally:
        hook.remove()
    needed = "" if trained_head else f"{model.base_model_prefix}."
    lacks = sorted(name for name in loaded["missing_keys"] if name.startswith(needed))
    if lacks:
        more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        raise ValueError(
            f"{path!r} lacks weights of {type(model).__name__}: {', '.join(lacks[:3])}{more}; they would be random; "
            "are the names in its files those of Transformers?"
        )
    result: PreTrainedModel = model
    return result


def from_pretrained(kind: Any, path: str, **arguments: Any) -> Any:
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        raise ValueError(f"there is no directory {path!r}")
    if Path(path).is_dir() and (what := directory_problem(Path(path))):
        raise ValueError(f"cannot load {path!r}: {what}")
    try:
        return kind.from_pretrained(path, trust_remote_code=False, **arguments)
    except Exception as error:  # the libraries below raise almost any exception for invalid input
        _check_readable(path)
        _check_known(path)
        where = "" if Path(path).is_dir() else ", which is not a directory here, from the hub"
        first, *rest = (str(error) or type(error).__name__).strip().splitlines()
        # What such a line introduces is the reason.
        reason = " ".join(" ".join([first, *rest]).split()) if first.rstrip().endswith(":") else first
        remedy = f"; {WITHOUT_HUB}" if where and "connect" in reason else ""
        raise ValueError(f"cannot load {path!r}{where}: {reason}{remedy}") from error


def _is_adapter(path: str) -> bool:
    """True for a directory or a hub name with an adapter, in whose place Transformers loads the model that it names."""
    try:
        return find_adapter_config_file(path) is not None
    except Exception:  # of the hub; reported when the model is loaded
        return False


def _check_known(path: str) -> None:
    """Raises ValueError for a model of a type that neither Transformers nor the job has: code beside it is not run."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(path)
    except Exception:
        return  # no configuration to tell
    kind = config.get("model_type")
    if kind is not None and kind not in CONFIG_MAPPING:
        raise ValueError(
            f"cannot load {path!r}: Transformers has no model type {kind!r}; name its classes in "
            "spec.model.architectures (code that lies beside a model is not run)"
        )


def _check_readable(path: str) -> None:
    """Raises ValueError for a file that this user may not read, which safetensors reports as missing."""
    for file in sorted(Path(path).glob("*")):
        if not os.access(file, os.R_OK, effective_ids=True):
            status = file.stat()
            raise ValueError(
                f"cannot load {path!r}: user {os.geteuid()} may not read {file.name}, which is of user {status.st_uid} "
                f"with mode {stat.filemode(status.st_mode)}; chmod -R a+rX {path!r}"
            )

"""Saves trained models in Hugging Face format."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from rlhf_api.base import ModelField

from .. import progress
from .trained_model import TrainedModel

ADAPTER = "-adapter"
INITIAL = "initial"
"""Folder of the model that a job creates."""


def save_model(engine: TrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Writes the engine's model (policy, reward model or critic) and its tokenizer in Hugging Face format; a
    collective, rank 0 writes. An adapter is merged, and also saved alone in PEFT's format, in a folder beside it whose
    name ends with ADAPTER.

    The files are written beside `directory` and renamed into place, so that a reader sees the old model, the new one
    or, for an instant, none, but never a partial one.
    """
    weights = _copied(engine, engine.named_tensors())
    if (adapter := engine.adapter) is not None:
        trained = _copied(engine, engine.trained_tensors())
        if engine.rank == 0:
            with renamed_into_place(directory.with_name(f"{directory.name}{ADAPTER}")) as new:
                adapter.save(new, trained)
    if engine.rank == 0:
        model: Any = engine.unwrapped
        config = model.config.get_text_config()
        if config.pad_token_id is None:  # without one, a reward model cannot score batches elsewhere
            config.pad_token_id = tokenizer.pad_token_id
        with renamed_into_place(directory) as new:
            with _generation_config_as_it_was(model, new):
                model.save_pretrained(new, state_dict=weights)
            tokenizer.save_pretrained(new)
    distributed.barrier()


def share(directory: Path) -> None:
    """Gives the files of a saved model the permissions of its folder, which follow the umask: safetensors creates files
    that only their owner can read, and another user's pods are to load them."""
    mode = directory.stat().st_mode & 0o666
    for file in directory.iterdir():
        file.chmod(mode)


def _copied(engine: TrainedModel, tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies on rank 0, in host memory; empty on the others."""
    weights = {}
    for name, tensor in tensors:
        if engine.rank == 0:
            weights[name] = tensor.to("cpu", copy=True)
    return weights


@contextmanager
def _generation_config_as_it_was(model: Any, directory: Path) -> Iterator[None]:
    """Saves the model's generation configuration beside what is saved meanwhile. Transformers reads many that it
    refuses to write, such as one with a temperature and no `do_sample`."""
    own: GenerationConfig | None = getattr(model, "generation_config", None)
    if own is None or not model.can_generate():
        yield
        return
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
    own.to_json_file(directory / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def remove_abandoned(workdir: Path) -> None:
    """Removes what killed trainers have left of models that they were saving; no other may be at work there."""
    fields = get_args(ModelField)
    for name in (INITIAL, *fields, *(f"{field}{ADAPTER}" for field in fields)):
        for part in workdir.glob(f".{name}.????????"):
            if part.is_dir() and {found.name for found in part.iterdir()} <= {"new", "old"}:
                shutil.rmtree(part, ignore_errors=True)


@contextmanager
def renamed_into_place(directory: Path) -> Iterator[Path]:
    """A temporary path for a folder, renamed to `directory` on exit; see `remove_abandoned`."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    part.chmod(0o755)
    new, old = part / "new", part / "old"
    try:
        with progress.growing(part):
            yield new
        share(new)
        if directory.exists():
            directory.rename(old)
        new.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)

"""Saves trained models in Hugging Face format."""

import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from safetensors.torch import save_file
from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from rlhf_api.field_types import ModelField

from ..data.chat import end_of_turn
from ..models.pretrained.vision import copy_processor
from ..models.trained_model import TrainedModel
from ..process import progress

ADAPTER = "-adapter"
INITIAL = "initial"
"""Folder of the model that a job creates."""


def save_model(
    engine: TrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, ends: Sequence[int] = ()
) -> None:
    """Writes the engine's model (policy, reward model or critic) and its tokenizer in Hugging Face format, as
    `write_files` does; a collective, rank 0 writes. An adapter is merged, and also saved alone in PEFT's format, in a
    folder beside it whose name ends with ADAPTER.

    The files are written beside `directory` and renamed into place, so that a reader sees the old model, the new one
    or, for an instant, none, but never a partial one.
    """
    weights = copied(engine, engine.named_tensors())
    if engine.adapter is not None:
        trained = copied(engine, engine.trained_tensors())
        if engine.rank == 0:
            with renamed_into_place(directory.with_name(f"{directory.name}{ADAPTER}")) as new:
                write_adapter_files(engine, tokenizer, new, ends)
                write_adapter(new, trained)
    if engine.rank == 0:
        with renamed_into_place(directory) as new:
            write_files(engine.unwrapped, tokenizer, new, ends, weights)
    distributed.barrier()


def write_files(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    ends: Sequence[int],
    weights: Mapping[str, Tensor],
) -> None:
    """Writes a model's folder: configuration, `weights` by their state-dict names, generation configuration,
    tokenizer, and the processor of images, if any. `ends`: the tokens that end a response, which a language model's
    configurations name; the padding token is that of `padding`."""
    config, generates = model.config.get_text_config(), model.can_generate()
    before = {name: getattr(config, name, None) for name in ("eos_token_id", "pad_token_id")}
    if ends and generates:
        config.eos_token_id = _one_or_many(ends)
    if before["pad_token_id"] in (None, *_endings(tokenizer)):
        config.pad_token_id = padding(tokenizer)
    own = getattr(model, "generation_config", None)
    if generates:  # Transformers reads configurations that it refuses to write: `write_generation` writes it
        model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(directory, state_dict=dict(weights))
    finally:
        if generates:
            model.generation_config = own
        for name, value in before.items():
            setattr(config, name, value)
    write_generation(model, tokenizer, directory, ends)
    copy_processor(model, directory)


def write_adapter_files(
    engine: TrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, ends: Sequence[int]
) -> None:
    """Writes all files of an adapter's folder but its weights: those of PEFT, and as `write_generation`."""
    assert engine.adapter is not None, "a model with an adapter"
    directory.mkdir(parents=True)
    engine.adapter.save_config(directory)
    write_generation(engine.unwrapped, tokenizer, directory, ends)


def write_adapter(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes an adapter's `weights`, by their state-dict names, under those of PEFT."""
    from ..models.adapter import saved_name  # PEFT takes two seconds to import

    tensors = {saved_name(name): tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def write_generation(
    model: Any, tokenizer: PreTrainedTokenizerBase, directory: Path, ends: Sequence[int]
) -> None:
    """Writes the tokenizer, with its chat template, and a language model's generation configuration: as it was, also
    one that Transformers refuses to write, such as one with a temperature and no `do_sample`, but with these end tokens
    and the padding token of `padding`."""
    written = copy.deepcopy(tokenizer)
    if padding(tokenizer) is None:
        written.pad_token = None
    written.save_pretrained(directory)
    if not model.can_generate():
        return
    generation = copy.deepcopy(model.generation_config)
    generation.eos_token_id = _one_or_many(ends) if ends else generation.eos_token_id
    if generation.pad_token_id in (None, *_endings(tokenizer)):
        generation.pad_token_id = padding(tokenizer)
    generation.to_json_file(directory / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def padding(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The tokenizer's padding token; None where that also ends a text or a turn: who masks padding would mask the ends,
    and never train a model to stop."""
    own: int | None = tokenizer.pad_token_id
    return None if own in _endings(tokenizer) else own


def _endings(tokenizer: PreTrainedTokenizerBase) -> tuple[int | None, ...]:
    """The tokens that end texts and the chat template's turns."""
    return tokenizer.eos_token_id, end_of_turn(tokenizer)


def _one_or_many(ends: Sequence[int]) -> int | list[int]:
    """End tokens as configurations have them: a number where it is one."""
    return ends[0] if len(ends) == 1 else list(ends)


def share(directory: Path) -> None:
    """Gives the files of a saved model the permissions of its folder, which follow the umask: safetensors creates files
    that only their owner can read, and another user's pods are to load them."""
    mode = directory.stat().st_mode & 0o666
    for file in directory.iterdir():
        file.chmod(mode)


def copied(engine: TrainedModel, tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies on rank 0, in host memory; empty on the others."""
    weights = {}
    for name, tensor in tensors:
        if engine.rank == 0:
            weights[name] = tensor.to("cpu", copy=True)
    return weights


def remove_abandoned(workdir: Path) -> None:
    """Removes what killed trainers have left of models that they were saving; no other may be at work there."""
    fields = get_args(ModelField)
    for name in (INITIAL, *fields, *(f"{field}{ADAPTER}" for field in fields)):
        for part in workdir.glob(f".{name}.????????"):
            if part.is_dir() and {entry.name for entry in part.iterdir()} <= {"new", "old"}:
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

"""Trained models written for others to load."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import distributed
from transformers import PreTrainedTokenizerBase

from .trained_model import TrainedModel


def save_model(engine: TrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Writes the engine's model (policy, reward model or critic) and its tokenizer in Hugging Face format; a
    collective, rank 0 writes.

    The files are written beside `directory` and renamed into place, so that a reader sees the old model or
    the new one, or for an instant none, but never a part.
    """
    weights = {}
    for name, tensor in engine.named_tensors():
        if engine.rank == 0:
            weights[name] = tensor.to("cpu", copy=True)
    if engine.rank == 0:
        model: Any = engine.unwrapped
        config = model.config.get_text_config()
        if config.pad_token_id is None:  # a reward model without one scores no batches elsewhere
            config.pad_token_id = tokenizer.pad_token_id
        directory.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        part.chmod(0o755)
        new, old = part / "new", part / "old"
        try:
            model.save_pretrained(new, state_dict=weights)
            tokenizer.save_pretrained(new)
            if directory.exists():
                directory.rename(old)
            new.rename(directory)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    distributed.barrier()

"""Models under DeepSpeed: batches, the engine, exact state, loading and saving."""

import os

import torch

# DeepSpeed chooses its accelerator while it is imported, and may choose wrongly on a machine without a GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

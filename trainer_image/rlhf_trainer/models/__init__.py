"""Models under DeepSpeed: batches, the engine, exact state, loading and saving."""

import os

import torch

# DeepSpeed selects its accelerator at import, and may select a wrong one on a machine without a GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

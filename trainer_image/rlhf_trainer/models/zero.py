"""Imports DeepSpeed so that it writes nothing to standard output, and imports and compiles nothing optional."""

import contextlib
import logging
import sys
import warnings

import torch

from ..process.imports import without

# DeepSpeed's autotuner, which nothing here runs, would import MLflow where that is installed: 900 modules.
with contextlib.redirect_stdout(sys.stderr), without("mlflow"):
    import deepspeed
    import deepspeed.comm
    from deepspeed.git_version_info import installed_ops
    from deepspeed.utils import groups

__all__ = ["deepspeed", "groups", "installed_ops"]

# Standard output belongs to the roles; DeepSpeed's loggers write to it by default.
for _name in list(logging.root.manager.loggerDict):
    for _handler in logging.getLogger(_name).handlers:
        if isinstance(_handler, logging.StreamHandler) and _handler.stream is sys.stdout:
            _handler.setStream(sys.stderr)
            _handler.setLevel(logging.WARNING)

# It calls deprecated collectives of torch, which warn at every step.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")

if not torch.cuda.is_available():
    # On a CPU it would compile a shared-memory all-reduce at first use, for a minute and with a
    # compiler that an image may lack. Only its inference engine uses that; gloo does everything here.
    deepspeed.ops.__compatible_ops__ = {}

"""Sizes of a job's models, also of those that are still on the hub. Imports no torch."""

import os
from contextlib import suppress
from pathlib import Path

from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.sizes import LOADED, Sizes
from rlhf_api.host.hub_cache import downloaded
from rlhf_api.spec import Spec


def job_sizes(spec: Spec) -> Sizes:
    """Sizes of the models of a job. Where that of the policy is not known, downloads the configuration of each model of
    the hub: its parameters follow from that."""
    if Sizes.of(spec, model_sizes(spec, os.environ)).policy is None:
        names = {getattr(spec.model, field) for field in LOADED} - {None}
        for name in sorted(names):
            if not Path(name).is_dir() and downloaded(name, os.environ) is None:
                _download_config(name)
    return Sizes.of(spec, model_sizes(spec, os.environ))


def _download_config(name: str) -> None:
    from huggingface_hub import hf_hub_download  # takes a second

    with suppress(OSError, ValueError):  # reported when the model is loaded
        hf_hub_download(name, "config.json")

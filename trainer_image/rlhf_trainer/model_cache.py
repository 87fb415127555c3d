"""Init container that fills a cache of hub models before a role starts: `python3 -m rlhf_trainer.model_cache`.

Pods that share the cache's volume may run it concurrently: the hub's client locks each file, so that one pod downloads
it and the others wait. A complete model in the cache is used without asking the hub. Imports no torch.
"""

import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from threading import Thread
from time import monotonic

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from rlhf_api.contract.run import ProcessEnv, RunConfig, shares_pod
from rlhf_api.contract.teachers import view_of, views_of
from rlhf_api.errors.problem import InvalidJob, Problem, first_line
from rlhf_api.host.model_directory import pickled, takes_pickles
from rlhf_api.roles import Role

from .process.role import run_role
from .process.settings import ModelSource, model_source, reward_sources

log = logging.getLogger(__name__)

STALL_SECONDS = 600.0
"""Timeout without new bytes, whichever pod downloads them; seconds."""
TELL_SECONDS = 10.0
"""Interval of progress lines, seconds."""
TENSORS, PICKLED = "*.safetensors", "*.bin"
OTHER_FORMS = (
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.ggml",
    "*.onnx*",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.tflite",
    "*/*",
)
"""File patterns of the same weights in other formats, and of subfolders."""


class PickledWeights(ValueError):
    """A model has no other weights than pickled ones, which are not allowed."""


def models_to_load(config: RunConfig, role: Role) -> dict[str, tuple[str, bool]]:
    """Hub names that a role loads: name -> (field of the manifest, whether its weights are loaded too)."""
    row, spec = role.row, config.spec
    loaded: list[ModelSource] = []
    if row.work == "train":
        loaded += [model_source(config, model.field) for model in spec.graph.trained]
    elif row.work == "generate":
        loaded.append(model_source(config, "policy"))
    elif row.work == "score":
        loaded += reward_sources(spec)
    elif row.model:
        loaded.append(model_source(config, row.model))
    models: dict[str, tuple[str, bool]] = {}
    sources = [(source, True) for source in loaded]
    for source, weights in (*sources, (model_source(config, "tokenizer"), False)):
        if not source.path.startswith((".", "/", "~")) and not Path(source.path).is_dir():
            models.setdefault(source.path, (source.where, weights))
    return models


def chosen(files: Iterable[str], *, weights: bool) -> list[str]:
    """Files of a repository to load: weights in one format, safetensors if present, and all that are not weights.
    Raises PickledWeights for weights that are not allowed."""
    named = [Path(name) for name in files]
    others = [
        name for name in named if not any(name.match(form) for form in (*OTHER_FORMS, TENSORS, PICKLED))
    ]
    tensors = [name for name in named if "/" not in str(name) and name.match(TENSORS)]
    pickles = [name for name in named if "/" not in str(name) and name.match(PICKLED)]
    if weights and pickles and not tensors and not takes_pickles():
        raise PickledWeights(pickled(str(pickles[0])))
    return sorted(map(str, others + (tensors or pickles if weights else [])))


def fill(cache: Path, name: str, where: str, *, weights: bool) -> None:
    """Downloads a model unless it is there.

    Raises:
        InvalidJob: the hub has no such model, does not let this job have it, or has it only as pickles.
        RuntimeError: the volume cannot hold it, or no byte came for `STALL_SECONDS`.
    """
    if _is_filled(cache, name, weights=weights):
        log.info("%s (%s) is in %s", name, where, cache)
        return
    try:
        _follow(cache, name, where, weights)
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError) as error:
        fix = "correct the name, or give the pods a token (HF_TOKEN)"
        message = f"the hub does not serve it: {first_line(error)}; {fix}; got {name!r}"
        raise InvalidJob([Problem(where, message)]) from error
    except PickledWeights as error:
        raise InvalidJob([Problem(where, f"{error}; got {name!r}")]) from None
    except Exception as error:
        raise RuntimeError(f"cannot fill {cache} with {name} ({where}): {first_line(error)}") from error
    log.info("%s (%s) is in %s now", name, where, cache)


def _is_filled(cache: Path, name: str, *, weights: bool) -> bool:
    """True if all files of the last downloaded revision are there; False for weights that are not safetensors."""
    ignored = [*OTHER_FORMS, PICKLED] if weights else [*OTHER_FORMS, PICKLED, TENSORS]
    try:
        folder = Path(
            snapshot_download(name, cache_dir=cache, local_files_only=True, ignore_patterns=ignored)
        )
    except (OSError, LocalEntryNotFoundError, HFValidationError):
        return False
    return not weights or any(folder.glob(TENSORS))


def _follow(cache: Path, name: str, where: str, weights: bool) -> None:
    """Waits for the download and logs its progress."""
    try:
        listed = {file.filename: file for file in snapshot_download(name, cache_dir=cache, dry_run=True)}
    except DryRunError as error:  # the error's own text lacks the reason
        raise error.__cause__ or error from None
    files = chosen(listed, weights=weights)
    total = sum(listed[file].file_size or 0 for file in files)
    folder = cache / f"models--{name.replace('/', '--')}"
    missing, free = total - _bytes(folder), shutil.disk_usage(cache).free
    if missing > free:
        raise OSError(f"it needs {missing / 1e9:.1f} GB more, but only {free / 1e9:.1f} GB are free")
    outcome: Future[str] = Future()
    Thread(target=_download, args=(outcome, cache, name, files), daemon=True).start()
    there, since, last_report = -1, monotonic(), float("-inf")
    while True:
        if monotonic() - last_report >= TELL_SECONDS:
            log.info("%s (%s): %.2f of %.2f GB", name, where, _bytes(folder) / 1e9, total / 1e9)
            last_report = monotonic()
        try:
            outcome.result(timeout=1.0)
            return
        except NotYet:
            if outcome.done():
                raise
        if (now_there := _bytes(folder)) != there:
            there, since = now_there, monotonic()
        elif monotonic() - since > STALL_SECONDS:
            progress_text = (
                f"no byte came for {STALL_SECONDS:g} s, {there / 1e9:.2f} of {total / 1e9:.2f} GB are there"
            )
            raise TimeoutError(f"{progress_text}; if no other process fills it, remove {cache / '.locks'}")


def _download(outcome: "Future[str]", cache: Path, name: str, files: list[str]) -> None:
    try:
        outcome.set_result(snapshot_download(name, cache_dir=cache, allow_patterns=files))
    except BaseException as error:
        outcome.set_exception(error)


def _bytes(folder: Path) -> int:
    """Bytes on disk, of complete and partial files."""
    nbytes = 0
    for file in (folder / "blobs").glob("*"):
        try:
            nbytes += file.stat().st_blocks * 512
        except FileNotFoundError:  # renamed on completion
            continue
    return nbytes


def run(env: ProcessEnv, environ: Mapping[str, str] = os.environ) -> None:
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # would log a line per request
    cache, role = Path(constants.HF_HUB_CACHE), Role(environ["RLHF_NAME"].rpartition("-")[0])
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{cache} cannot be made: {error.strerror}; pods run as user {os.getuid()}, group {os.getgid()}"
        )
        raise InvalidJob([Problem(f"spec.{role.value}.pods.modelCache", message)]) from error
    if not os.access(cache, os.W_OK | os.X_OK):
        message = f"{cache} cannot be written by user {os.getuid()}, group {os.getgid()}"
        raise InvalidJob([Problem(f"spec.{role.value}.pods.modelCache", message)])
    spec = env.config.spec
    # In a shared pod one process fills the cache for all of its role.
    views = views_of(spec, role) if shares_pod(spec) else [view_of(spec, role, env.index)]
    for view in views:
        config = env.config.model_copy(update={"spec": view})
        for name, (where, weights) in models_to_load(config, role).items():
            fill(cache, name, where, weights=weights)


if __name__ == "__main__":
    run_role(run)

"""Writes a model of a snapshot as a Hugging Face folder, on the processor. The store has all of it, except the base
weights of an adapter that is merged."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load
from torch import Tensor
from transformers import GenerationConfig

from rlhf_api.contract.run import ExportRequest
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import DType
from rlhf_api.host.printing import write_line
from rlhf_api.sections.lora import Lora
from rlhf_api.sections.sampling import Sampling
from rlhf_store.archive import Archive
from rlhf_store.errors import UnusableStore

from ..checkpoint.reading import Snapshot
from ..data.encode import end_tokens
from ..graph.learner import KEY
from ..models.pretrained import architectures
from ..models.pretrained.files import load_config
from ..models.pretrained.hub import use_cache_if_unreachable
from ..models.pretrained.job_models import LOADERS, loading
from ..models.pretrained.load import load_tokenizer, made_of
from ..models.state import MASTER
from ..models.trained_model import state_items
from ..ranks.ranks import Ranks
from .card import CARD, card
from .model_files import ADAPTER, renamed_into_place, write_adapter, write_files
from .saved_job import CONSTANTS, FOLDER, JOB, SavedJob, SavedModel

ALONE = Ranks(0, 1, torch.device("cpu"))


def export_snapshot(request: ExportRequest) -> None:
    """Writes the folder that the request names.

    Raises:
        InvalidJob: the snapshot lacks what is requested, or the base is not the adapter's.
        UnusableStore: there is no such store, or it is of another release.
        DamagedSnapshot, StoreError: the snapshot cannot be read.
    """
    archive = Archive(request.store)
    (entry,) = (entry for entry in archive.entries() if entry.step == request.step)
    snapshot = Snapshot.open(ALONE, archive, entry)
    job = _job(snapshot, request)
    model = next((model for model in job.models if model.field == request.field), None)
    if model is None:
        trained = ", ".join(model.field for model in job.models)
        raise InvalidJob([Problem("--of", f"the job trains {trained}; got {request.field}")])
    architectures.register(job.architectures)
    how = request.adapter or "merged"
    _check(model, request, described=JOB in snapshot.blobs)
    with renamed_into_place(Path(request.out)) as new:
        if how == "alone":
            new.mkdir()
            write_adapter(new, trained_weights(snapshot, model))
            _write_stored(snapshot, f"{model.field}{ADAPTER}", new)
        elif model.lora is None and JOB in snapshot.blobs:
            _write_whole(snapshot, model, new)
        else:
            _write_on_base(snapshot, job, model, request.model or model.start, new)
        text = card(job, model, step=entry.step, adapter=how, evaluation=entry.reward)
        (new / CARD).write_text(text, encoding="utf-8")


def trained_weights(snapshot: Snapshot, model: SavedModel) -> dict[str, Tensor]:
    """The trained tensors by state-dict name, in the dtypes of the live ones: rounded as an optimizer step rounds."""
    names = [
        name.removeprefix(f"{MASTER}/")
        for segment in snapshot.groups[model.group]
        for name in segment.names
        if name.startswith(f"{MASTER}/")
    ]
    return {
        name: snapshot.tensor(model.group, f"{MASTER}/{name}").to(
            getattr(torch, model.dtypes.get(name, model.dtype)), copy=True
        )
        for name in names
    }


def _write_whole(snapshot: Snapshot, model: SavedModel, folder: Path) -> None:
    """A model that was trained as a whole: its class and configuration are those of the stored files."""
    folder.mkdir()
    _write_stored(snapshot, model.field, folder)
    constants = f"{FOLDER}{model.field}/{CONSTANTS}"
    weights = trained_weights(snapshot, model)
    weights |= load(snapshot.blob(constants)) if constants in snapshot.blobs else {}
    made = made_of(load_config(str(folder)), model.head)
    if made.can_generate():
        made.generation_config = GenerationConfig()
    made.save_pretrained(folder, state_dict={name: weights[name] for name in model.dtypes})
    _write_stored(snapshot, model.field, folder)  # over what the class has written of its own


def _write_on_base(snapshot: Snapshot, job: SavedJob, model: SavedModel, base: str, folder: Path) -> None:
    """A model whose base weights, or whose files, the snapshot lacks: loaded from `base`, filled and merged."""
    dtype = getattr(torch, model.dtype)
    made: Any = loading("--model", lambda: LOADERS[model.head](base, dtype))
    adapter = None
    if model.lora is not None:
        from ..models.adapter import Adapter  # PEFT takes two seconds to import

        lora = model.lora
        adapter = loading("--model", lambda: Adapter(made, lora, job.seed, base))
        if adapter.fingerprint != _fingerprint(snapshot, model):
            message = f"its weights are not those below the adapter of this checkpoint; got {base!r}"
            raise InvalidJob([Problem("--model", message)])
    trained = trained_weights(snapshot, model)
    for name, tensor in state_items(made):
        tensor.data = trained.get(name, tensor.detach()).to(
            getattr(torch, model.dtypes.get(name, model.dtype))
            if tensor.is_floating_point()
            else tensor.dtype
        )
    items = ((name, tensor.detach()) for name, tensor in state_items(made))
    weights = dict(items if adapter is None else adapter.merged(adapter.to_merge(items)))
    tokenizer = loading("--model", lambda: load_tokenizer(base))
    generation = made.generation_config if made.can_generate() else None
    ends = end_tokens(tokenizer, generation, Sampling()) if generation else ()
    write_files(made, tokenizer, folder, ends, weights)
    _write_stored(snapshot, model.field, folder)


def _write_stored(snapshot: Snapshot, name: str, folder: Path) -> None:
    """Writes the files of a folder that the snapshot has."""
    start = f"{FOLDER}{name}/"
    for blob in snapshot.blobs:
        if blob.startswith(start) and not blob.endswith(f"/{CONSTANTS}"):
            file = folder / blob.removeprefix(start)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(snapshot.blob(blob))


def _check(model: SavedModel, request: ExportRequest, *, described: bool) -> None:
    """Raises InvalidJob for options that do not go with this model."""
    if request.adapter and model.lora is None:
        message = f"the {model.field} was trained as a whole; leave it out; got {request.adapter}"
        raise InvalidJob([Problem("--adapter", message)])
    if request.adapter == "alone" and not described:
        message = "this checkpoint is of a release that saved no files of the adapter; got alone"
        raise InvalidJob([Problem("--adapter", message)])
    if request.model and described and (model.lora is None or request.adapter == "alone"):
        raise InvalidJob(
            [Problem("--model", f"the checkpoint has all of it; leave it out; got {request.model!r}")]
        )


def _job(snapshot: Snapshot, request: ExportRequest) -> SavedJob:
    """The job as the snapshot describes it, or, of an earlier release, as its tensors and `--model` tell."""
    if JOB in snapshot.blobs:
        return SavedJob.model_validate_json(snapshot.blob(JOB))
    if request.model is None:
        message = "is needed: this checkpoint is of a release that saved no configuration and no tokenizer; name the "
        raise InvalidJob([Problem("--model", f"{message}folder or hub name that the job started from")])
    groups = {"critic": ("critic",), "policy": ("policy", "model")}.get(request.field, ())
    group = next((name for name in groups if name in snapshot.groups), None)
    if group is None:
        return SavedJob(job="", algorithm="", steps=snapshot.step, seed=0)
    names = {name for segment in snapshot.groups[group] for name in segment.names}
    scores = any(name.startswith((f"{MASTER}/score", f"{MASTER}/classifier")) for name in names)
    dtype = loading("--model", lambda: load_config(str(request.model))).dtype
    model = SavedModel(
        field=request.field,
        group=group,
        head="value" if group == "critic" else "score" if scores else "causal",
        dtype=cast(DType, str(dtype or torch.float32).removeprefix("torch.")),
    )
    if fingerprint := _fingerprint(snapshot, model):
        settings = {key: value for key, value in fingerprint.items() if key != "base"}
        model = model.model_copy(update={"lora": Lora.model_validate(settings, strict=False)})
    return SavedJob(job="", algorithm="", steps=snapshot.step, seed=0, models=(model,))


def _fingerprint(snapshot: Snapshot, model: SavedModel) -> Mapping[str, Any] | None:
    """The fingerprint of a model's adapter."""
    adapters = cast(Mapping[str, Mapping[str, Any]], snapshot.state.get(KEY, {}))
    return adapters.get(model.group)


def main() -> int:
    """Reads an ExportRequest as JSON from stdin; returns the exit code."""
    request = ExportRequest.model_validate_json(sys.stdin.read())
    use_cache_if_unreachable()
    try:
        export_snapshot(request)
    except InvalidJob as error:
        for problem in error.problems:
            write_line(f"error: {problem}", sys.stderr)
        return 2
    except UnusableStore as error:
        write_line(f"error: {error}", sys.stderr)
        return 2
    except RuntimeError as error:  # a failing store, or a damaged checkpoint
        write_line(f"error: {error}", sys.stderr)
        return 1
    write_line(f"the {request.field} of step {request.step} is in {request.out}", sys.stdout)
    return 0

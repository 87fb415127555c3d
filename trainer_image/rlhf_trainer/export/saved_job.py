"""Files of a snapshot from which its models are written as Hugging Face folders, without the job and its start."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import save

from rlhf_api.field_types import DType, Head, ModelField, Report
from rlhf_api.graph import Model
from rlhf_api.host.redaction import masked, secrets_of
from rlhf_api.job import API_VERSION, KIND
from rlhf_api.sections.lora import Lora

from ..data.encode import end_tokens
from ..graph.learner import Models
from ..models.trained_model import TrainedModel
from ..ranks.context import TrainerContext
from .model_files import ADAPTER, INITIAL, copied, write_adapter_files, write_files

FOLDER = "export/"
JOB = f"{FOLDER}job.json"
CONSTANTS = "constants.safetensors"
"""A model's buffers and untrained weights, which no group of a snapshot has."""


class SavedModel(Report):
    """A trained model. `group`: its tensors in a snapshot; `start`: the path or hub name that it started from;
    `hub_name`: that, if it is no path; `ends`: the tokens that end its responses; `dtypes`: dtypes of the live tensors
    by state-dict name, in order."""

    field: ModelField
    group: str
    head: Head
    dtype: DType
    start: str = ""
    hub_name: str | None = None
    lora: Lora | None = None
    ends: tuple[str, ...] = ()
    dtypes: dict[str, str] = {}


class SavedJob(Report):
    """The job of a snapshot. `stops`: its stop strings; `manifest`: what it was started with, defaults left out and
    secrets replaced, see `masked`."""

    job: str
    algorithm: str
    steps: int
    seed: int
    architectures: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    manifest: dict[str, JsonValue] = {}
    models: tuple[SavedModel, ...] = ()


def describe_job(ctx: TrainerContext, models: Sequence[SavedModel] = ()) -> SavedJob:
    spec = ctx.spec
    whole = json.loads(spec.model_dump_json(by_alias=True, exclude_defaults=True))
    given = masked(whole, secrets_of(os.environ))
    return SavedJob(
        job=ctx.job,
        algorithm=spec.algorithm,
        steps=spec.steps,
        seed=spec.seed,
        architectures=spec.model.architectures,
        stops=spec.sampling.stop,
        manifest={"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": ctx.job}, "spec": given},
        models=tuple(models),
    )


def describe_model(ctx: TrainerContext, used: Model, ends: Sequence[int]) -> SavedModel:
    """`ends`: the model's end tokens; see `model_ends`."""
    _, start = ctx.spec.source(used.field) or ("", str(ctx.workdir / INITIAL))
    return SavedModel(
        field=used.field,
        group=used.name,
        head=used.head,
        dtype=ctx.spec.trained_dtype(used.field),
        start=start,
        hub_name=None if Path(start).exists() else start,
        lora=ctx.spec.model.adapter(used.field),
        ends=tuple(ctx.tokenizer.convert_ids_to_tokens(list(ends))),
    )


def model_ends(ctx: TrainerContext, model: TrainedModel) -> tuple[int, ...]:
    """The tokens that end this job's responses, for a model that generates; see `end_tokens`."""
    generation = model.generation_config
    return () if generation is None else end_tokens(ctx.tokenizer, generation, ctx.spec.sampling)


def export_files(ctx: TrainerContext, models: Models) -> dict[str, bytes]:
    """Blobs of every snapshot of this run, on rank 0: the job, and all files of its models' folders but the trained
    weights. A collective."""
    blobs, described = dict[str, bytes](), list[SavedModel]()
    for used, model in models.items():
        ends = model_ends(ctx, model)
        constants = {} if model.adapter else copied(model, model.untrained_tensors())
        if not ctx.ranks.first:
            continue
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in model.state_items()}
        start = {"start": model.adapter.config.base_model_name_or_path} if model.adapter else {}
        described.append(describe_model(ctx, used, ends).model_copy(update={"dtypes": dtypes, **start}))
        with tempfile.TemporaryDirectory() as folder:
            write_files(model.unwrapped, ctx.tokenizer, Path(folder, used.field), ends, {})
            if model.adapter:
                write_adapter_files(model, ctx.tokenizer, Path(folder, f"{used.field}{ADAPTER}"), ends)
            blobs |= {
                f"{FOLDER}{file.relative_to(folder).as_posix()}": file.read_bytes()
                for file in Path(folder).rglob("*")
                if file.is_file() and file.suffix != ".safetensors"
            }
        if constants:
            blobs[f"{FOLDER}{used.field}/{CONSTANTS}"] = save(constants)
    if ctx.ranks.first:
        blobs[JOB] = describe_job(ctx, described).model_dump_json(by_alias=True).encode()
    return blobs

"""Exports trained models to the work directory, with a model card each."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from rlhf_api.graph import Model

from ..graph.learner import Models
from ..metrics.files import EVALUATIONS, STEPS, read_lines
from ..metrics.pictures import PICTURE
from ..ranks.context import TrainerContext
from .card import CARD, card
from .model_files import ADAPTER, save_model
from .saved_job import describe_job, describe_model, model_ends


def export_models(ctx: TrainerContext, models: Models, step: int) -> None:
    """Saves every trained model with its card to the work directory, see `save_model`; a collective."""
    for used, model in models.items():
        folder, ends = ctx.workdir / used.field, model_ends(ctx, model)
        save_model(model, ctx.tokenizer, folder, ends)
        if ctx.ranks.first:
            write_card(ctx, used, folder, step, ends)
            if model.adapter:
                write_card(ctx, used, folder.with_name(f"{folder.name}{ADAPTER}"), step, ends)


def write_card(ctx: TrainerContext, used: Model, folder: Path, step: int, ends: Sequence[int] = ()) -> None:
    """Writes the card of the model after `step`, with the run's plot. `ends`: its end tokens."""
    picture = ctx.workdir / PICTURE
    if picture.exists():
        shutil.copyfile(picture, folder / PICTURE)
    text = card(
        describe_job(ctx),
        describe_model(ctx, used, ends),
        step=step,
        adapter="alone" if folder.name.endswith(ADAPTER) else "merged",
        steps=read_lines(ctx.workdir / STEPS),
        evaluations=read_lines(ctx.workdir / EVALUATIONS),
        picture=PICTURE if picture.exists() else None,
    )
    (folder / CARD).write_text(text, encoding="utf-8")

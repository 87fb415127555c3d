"""Exports trained models with a model card each: base model, results, and the manifest that reproduces it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_api.document import dumped
from rlhf_api.graph import Model
from rlhf_api.manifest import API_VERSION, KIND

from ..context import TrainerContext
from ..graph.learner import Models
from ..models.export import save_model
from .metrics import EVALUATIONS, PICTURE, STEPS, read_lines

CARD = "README.md"
SHOWN = ("reward_mean", "kl_mean", "loss", "accuracy", "answer_length_mean")
"""Metrics of the first and the last step in a card, if the job has them."""


def export_models(ctx: TrainerContext, models: Models) -> None:
    """Saves every trained model with its card to the work directory, see `save_model`; a collective."""
    for used, model in models.items():
        folder = ctx.workdir / used.field
        save_model(model, ctx.tokenizer, folder)
        if ctx.ranks.first:
            write_card(ctx, used, folder)


def write_card(ctx: TrainerContext, used: Model, folder: Path) -> None:
    """Writes the card in the Hugging Face hub's format, with the run's plot."""
    picture = ctx.workdir / PICTURE
    if picture.exists():
        shutil.copyfile(picture, folder / PICTURE)
    (folder / CARD).write_text(
        "\n".join(_lines(ctx, used, picture=picture.exists())) + "\n", encoding="utf-8"
    )


def _lines(ctx: TrainerContext, used: Model, *, picture: bool) -> Iterator[str]:
    spec = ctx.spec
    _, start = spec.model.source(used.field) or ("", None)
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["rlhf-operator", spec.algorithm]}
    if start is not None and not Path(start).exists():  # a hub name, not a local path
        front["base_model"] = start
    yield from ("---", dumped(front), "---", "")
    yield from (f"# {ctx.job}: {used.field}", "")
    lora = spec.model.adapter(used.field)
    how = f", with a low-rank adapter (rank {lora.rank}) merged into it" if lora is not None else ""
    yield from (f"Trained by {spec.algorithm} for {spec.steps} steps{how}.", "")
    steps = read_lines(ctx.workdir / STEPS)
    if steps:
        yield from ("| figure | first step | last step |", "| --- | --- | --- |")
        first, last = steps[0], steps[-1]
        yield from (f"| {n} | {first[n]:.4g} | {last[n]:.4g} |" for n in SHOWN if n in first and n in last)
        yield ""
    yield from _evaluations(read_lines(ctx.workdir / EVALUATIONS))
    if picture:
        yield from (f"![{ctx.job}]({PICTURE})", "")
    said = json.loads(spec.model_dump_json(by_alias=True, exclude_defaults=True))
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": ctx.job}, "spec": said}
    yield from ("The manifest, for `rlhf run`:", "", "```yaml", dumped(document), "```")


def _evaluations(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The first and the last result of each evaluation set, as lines."""
    sets = dict.fromkeys(line["set"] for line in lines)
    if not sets:
        return
    yield from ("| evaluation | figure | step | | step | |", "| --- | --- | --- | --- | --- | --- |")
    for name in sets:
        first, *_, last = 2 * [line for line in lines if line["set"] == name]
        figure = "mean" if "mean" in last else "loss"
        cells = (f"{line['step']} | {line[figure]:.4g}" for line in (first, last))
        yield f"| {name} | {figure} | {' | '.join(cells)} |"
    yield ""

"""Exports trained models with a model card each: base model, results, and the manifest that reproduces it."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_api.document import dumped
from rlhf_api.graph import Model
from rlhf_api.manifest import API_VERSION, KIND

from ..context import TrainerContext
from ..data.encode import end_tokens
from ..graph.learner import Models
from ..models.export import save_model
from ..models.trained_model import TrainedModel
from .metrics import EVALUATIONS, PICTURE, STEPS, read_lines

CARD = "README.md"
SHOWN = ("reward_mean", "kl_mean", "loss", "accuracy", "answer_length_mean")
"""Metrics of the first and the last step in a card, if the job has them."""


def export_models(ctx: TrainerContext, models: Models) -> None:
    """Saves every trained model with its card to the work directory, see `save_model`; a collective."""
    for used, model in models.items():
        folder, ends = ctx.workdir / used.field, model_ends(ctx, model)
        save_model(model, ctx.tokenizer, folder, ends)
        if ctx.ranks.first:
            write_card(ctx, used, folder, ends)


def model_ends(ctx: TrainerContext, model: TrainedModel) -> tuple[int, ...]:
    """The tokens that end this job's responses, for a model that generates; see `end_tokens`."""
    generation = model.generation_config
    return () if generation is None else end_tokens(ctx.tokenizer, generation, ctx.spec.sampling)


def write_card(ctx: TrainerContext, used: Model, folder: Path, ends: Sequence[int] = ()) -> None:
    """Writes the card in the Hugging Face hub's format, with the run's plot. `ends`: the model's end tokens."""
    picture = ctx.workdir / PICTURE
    if picture.exists():
        shutil.copyfile(picture, folder / PICTURE)
    lines = _lines(ctx, used, ends, picture=picture.exists())
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(ctx: TrainerContext, used: Model, ends: Sequence[int], *, picture: bool) -> Iterator[str]:
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
    if ends:
        named = [f"`{token}`" for token in ctx.tokenizer.convert_ids_to_tokens(list(ends))]
        stops = [f"the text `{json.dumps(text, ensure_ascii=False)}`" for text in spec.sampling.stop]
        yield from (f"A response ends with {' or '.join([*named, *stops])}.", "")
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

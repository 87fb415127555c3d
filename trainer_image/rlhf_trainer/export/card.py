"""Model card of an exported model: base model, results, end tokens, and the manifest that reproduces it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlhf_api.contract.evaluations import list_means
from rlhf_api.field_types import with_present_names
from rlhf_api.host.printing import clean
from rlhf_api.host.redaction import MASK
from rlhf_api.host.strict_yaml import dumped

from .saved_job import SavedJob, SavedModel

CARD = "README.md"
SHOWN = ("reward_mean", "kl_mean", "loss", "accuracy", "response_length_mean")
"""Metrics of the first and the last step in a card, if the job has them."""
Lines = Sequence[Mapping[str, Any]]


def card(
    job: SavedJob,
    model: SavedModel,
    *,
    step: int,
    adapter: Literal["merged", "alone"] = "merged",
    steps: Lines = (),
    evaluations: Lines = (),
    evaluation: float | None = None,
    picture: str | None = None,
) -> str:
    """The card in the Hugging Face hub's format. `steps`, `evaluations`: metrics of the run, if they are known;
    `evaluation`: that of the step alone; `picture`: a file beside the card."""
    parts = [
        *_head(job, model, step, adapter),
        *_figures(steps),
        *_evaluations(evaluations),
        *([f"Evaluation at this step: {evaluation:.4g}", ""] if evaluation is not None else []),
        *([f"![{job.job}]({picture})", ""] if picture else []),
        *(_manifest(dumped(job.manifest)) if job.manifest else []),
    ]
    return clean("\n".join(parts)) + "\n"


def _manifest(text: str) -> Iterator[str]:
    yield from ("The manifest, for `rlhf run`:", "")
    if MASK in text:
        yield from (f"Values that look like secrets are left out, as `{MASK}`; put yours there.", "")
    yield from ("```yaml", text, "```")


def _head(job: SavedJob, model: SavedModel, step: int, adapter: str) -> Iterator[str]:
    front: dict[str, Any] = {"library_name": "peft" if adapter == "alone" else "transformers"}
    front["tags"] = ["rlhf-operator", *([job.algorithm] if job.algorithm else [])]
    if model.hub_name is not None:
        front["base_model"] = model.hub_name
    yield from ("---", dumped(front), "---", "")
    yield from (f"# {job.job}: {model.field}" if job.job else f"# {model.field}", "")
    how = ""
    if model.lora is not None:
        place = "merged into it" if adapter == "merged" else "which is this folder"
        how = f", with a low-rank adapter (rank {model.lora.rank}) {place}"
    by = f" by {job.algorithm}" if job.algorithm else ""
    of = "" if step == job.steps else f"{step} of "
    yield from (f"Trained{by} for {of}{job.steps} steps{how}.", "")
    if model.ends:
        ends = [f"`{_in_code(token)}`" for token in model.ends]
        ends += [f"the text `{_in_code(repr(text))}`" for text in job.stops]
        yield from (f"A response ends with {' or '.join(ends)}.", "")


def _in_code(text: str) -> str:
    """Text of a stranger's tokenizer, which ends neither the code that it stands in nor the line."""
    return text.replace("`", "\u02cb").replace("\n", " ")


def _figures(lines: Lines) -> Iterator[str]:
    """The first and the last step's metrics, as a table."""
    if lines:
        yield from ("| figure | first step | last step |", "| --- | --- | --- |")
        first, last = with_present_names(lines[0]), with_present_names(lines[-1])
        yield from (f"| {n} | {first[n]:.4g} | {last[n]:.4g} |" for n in SHOWN if n in first and n in last)
        yield ""


def _evaluations(lines: Lines) -> Iterator[str]:
    """The first and the last result of each evaluation set, as a table: a row for each metric."""
    sets = dict.fromkeys(line["set"] for line in lines)
    if not sets:
        return
    yield from ("| evaluation | figure | step | | step | |", "| --- | --- | --- | --- | --- | --- |")
    for name in sets:
        of_set = [line for line in lines if line["set"] == name]
        for figure in list_means(of_set[-1]).values():
            first, *_, last = 2 * [line for line in of_set if figure in line]
            cells = (f"{line['step']} | {line[figure]:.4g}" for line in (first, last))
            yield f"| {name} | {figure} | {' | '.join(cells)} |"
    yield ""

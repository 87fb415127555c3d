"""Reports a step's metrics and times: to the files and trackers, to the host and to the log."""

import json
import logging

import torch

from rlhf_api.contract.timeline import Span, StepTimeline

from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from ..ranks.ranks import Ranks
from .files import MetricsFiles
from .step import gpu_memory

log = logging.getLogger(__name__)

LOGGED = ("reward_mean", "kl_mean", "loss", "accuracy", "tokens", "seconds")
"""Metrics in a step's log line; all of them are in metrics.jsonl."""


def record(ctx: TrainerContext, files: MetricsFiles | None, step: int, metrics: dict[str, float]) -> None:
    """Writes a step to its files, the host and the log. `files` is None on ranks other than 0. A collective."""
    began, spans = gather_times(ctx.ranks)
    if files is None:
        return
    line = {"step": step, "episode": step, "weight_version": step, **metrics, **_idle(ctx, metrics)}
    line |= gpu_memory(ctx.ranks.device)
    files.step(line)
    seconds = round(metrics["seconds"], 4)
    files.times(StepTimeline(step=step, time=began, seconds=seconds, spans=tuple(spans)))
    recent = [row["seconds"] for row in files.recent]
    ctx.report(
        step=step,
        episode=step,
        weight_version=step,
        reward_mean=line.get("reward_mean"),
        kl_mean=line.get("kl_mean"),
        loss=line.get("loss"),
        staleness=line.get("staleness"),
        staleness_max=line.get("staleness_max"),
        staleness_bound=ctx.spec.rollout.max_staleness if "staleness" in line else None,
        trainer_idle=line.get("trainer_idle_share"),
        generator_idle=line.get("generator_idle_share"),
        responses_continued=line.get("responses_continued"),
        importance_effective=line.get("importance_effective_share"),
        tokens_per_second=line["tokens"] / line["seconds"],
        seconds_per_step=sum(recent) / len(recent),
    )
    summary = " ".join(f"{name}={metrics[name]:.4g}" for name in LOGGED if name in metrics)
    log.info("step %d/%d: %s", step, ctx.spec.steps, summary)


def gather_times(ranks: Ranks) -> tuple[float, list[Span]]:
    """Gathers the spans of all ranks; returns them after the time at which the step began."""
    began, spans = RECORDER.take_step(ranks.rank)
    mine = torch.frombuffer(bytearray(json.dumps(spans).encode()), dtype=torch.uint8)
    gathered = ranks.gather({"spans": mine}) if ranks.world > 1 else []
    others = [Span(*span) for each in gathered[1:] for span in json.loads(each["spans"].numpy().tobytes())]
    return began, spans + others


def _idle(ctx: TrainerContext, metrics: dict[str, float]) -> dict[str, float]:
    """Idle shares of trainer and generators in a step, if the job has generators."""
    if "generate_seconds" not in metrics or ctx.spec.generator.shared_with_trainer:
        return {}
    seconds, waited = metrics["seconds"], metrics["generate_seconds"]
    shares = {"trainer_idle_share": waited / seconds}
    if not ctx.spec.replay.dynamic:  # unknown if responses are trained on as they arrive
        idle = metrics.get("generators_idle_seconds", seconds - waited)
        shares["generator_idle_share"] = min(1.0, idle / seconds)
    return shares

"""Built-in trackers, each through its own client: TensorBoard's event files, Weights & Biases, MLflow, trackio."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from rlhf_api.contract.samples import Sample
from rlhf_api.host.printing import clean

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """Description of the run for a tracker."""

    id: str
    """Unique to this run, and the same after a resume; another one after a rollback or pause of `spec.health`, whose
    undone steps keep their values under the one before."""
    name: str
    """The job's name, with the number of rollbacks if there were any."""
    project: str
    folder: Path
    """The work directory."""
    step: int
    """Metrics of later steps follow; a run that had gone further before its resume may have logged some already."""
    manifest: Mapping[str, Any]
    """The job's spec as JSON, secrets replaced."""


class Tracker(Protocol):
    """Created as `kind(run, **settings)`. Used on one thread; may raise any exception and take any time."""

    def log(self, figures: Figures, step: int) -> None:
        """Logs the metrics of a step, or of its evaluation, with the prefix `evaluation/<set>/`."""

    def close(self, *, ok: bool) -> None:
        """Ends the run; not `ok` if it failed."""


@runtime_checkable
class SampleTracker(Protocol):
    """A tracker that shows responses too."""

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        """Logs responses that the step trained on, of which every tenth step has some."""


COLUMNS = ("prompt", "response", "score", "advantage", "finished", "weight_version", "response_length")
"""Fields of a sample in a tracker's table."""


def _cells(samples: Sequence[Sample]) -> list[list[Any]]:
    return [[getattr(sample, name) for name in COLUMNS] for sample in samples]


def _as_markdown(samples: Sequence[Sample]) -> str:
    """Fields and texts as code, in which nothing is markup."""
    texts = (
        "\n".join(f"{name}: {value}" for name, value in zip(COLUMNS, cells, strict=True))
        for cells in _cells(samples)
    )
    return "\n\n---\n\n".join("\n".join(f"    {line}" for line in text.splitlines()) for text in texts)


class TensorBoard:
    """Event files in `tensorboard` in the work directory. Steps that are trained again replace those before."""

    def __init__(self, run: Run, **settings: Any) -> None:
        from tensorboardX import SummaryWriter

        given = {
            "logdir": str(run.folder / "tensorboard"),
            "purge_step": run.step + 1 if run.step else 0,
            "filename_suffix": f".{run.step}",
        }
        self._writer = SummaryWriter(**{**given, **settings})

    def log(self, figures: Figures, step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        self._writer.add_text("samples", _as_markdown(samples), step)

    def close(self, *, ok: bool) -> None:  # noqa: ARG002
        self._writer.close()


class WandB:
    """Weights & Biases, or files for `wandb sync` if WANDB_MODE is `offline`. It keeps the first values of a step that
    is trained again."""

    _open: ClassVar[set["WandB"]] = set()

    def __init__(self, run: Run, **settings: Any) -> None:
        import wandb

        named: dict[str, Any] = {"name": run.name, "id": run.id, "resume": "allow", "dir": str(run.folder)}
        quiet = wandb.Settings(console="off", silent=True)  # the console log stays the job's
        given = {"project": run.project, "config": dict(run.manifest), "settings": quiet, **settings}
        try:
            self._run: Any = wandb.init(**{**named, **given})
        except Exception:
            self._end_process()  # which has the run's id in use
            raise
        self._open.add(self)

    def log(self, figures: Figures, step: int) -> None:
        self._run.log(dict(figures), step=step)

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        import wandb

        self._run.log({"samples": wandb.Table([*COLUMNS], _cells(samples))}, step=step)

    def close(self, *, ok: bool) -> None:
        self._run.finish(exit_code=0 if ok else 1)
        self._open.discard(self)
        # `finish` does not wait until the client's process, which ends with this one, has written the last records.
        self._end_process()

    def _end_process(self) -> None:
        """Ends the client's process, unless it has another run open."""
        import wandb

        if not self._open:
            wandb.teardown()


class MLflow:
    """An MLflow run, found again by its tag `rlhf.run`. The server is MLFLOW_TRACKING_URI's or the settings'. The first
    values of a step that is trained again stay."""

    def __init__(self, run: Run, **settings: Any) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(**settings)
        experiment = self._client.get_experiment_by_name(run.project)
        within = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        runs = self._client.search_runs([within], f"tags.`rlhf.run` = '{run.id}'", max_results=1)
        self._last: Mapping[str, int] = {}
        if runs:
            self._id = runs[0].info.run_id
            history = (
                (name, self._client.get_metric_history(self._id, name)) for name in runs[0].data.metrics
            )
            self._last = {name: max(point.step for point in points) for name, points in history}
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(within, run_name=run.name, tags={"rlhf.run": run.id})
        self._id = made.info.run_id
        for name, value in run.manifest.items():
            self._client.log_param(self._id, name, clean(str(value))[:6000])

    def log(self, figures: Figures, step: int) -> None:
        from mlflow.entities import Metric

        now, new = int(time.time() * 1000), _later(figures, step, self._last)
        self._client.log_batch(self._id, metrics=[Metric(n, v, now, step) for n, v in new.items()])

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        self._client.log_text(self._id, _as_markdown(samples), f"samples/step-{step:06d}.md")

    def close(self, *, ok: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if ok else "FAILED")


class Trackio:
    """trackio: a local SQLite file, which keeps the first values of a step that is trained again; or the Space named in
    the settings, which keeps both."""

    def __init__(self, run: Run, **settings: Any) -> None:
        # trackio skips values while another thread has this half imported: it asks whether each is a figure.
        import matplotlib.figure  # noqa: F401
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        name, config = f"{run.name}-{run.id[:8]}", dict(run.manifest)
        given = {"project": run.project, "name": name, "resume": "allow", "config": config, **settings}
        lines = SQLiteStorage.get_logs(given["project"], given["name"])
        self._last = {figure: line["step"] for line in lines for figure in line}
        self._run: Any = trackio.init(**given)

    def log(self, figures: Figures, step: int) -> None:
        if new := _later(figures, step, self._last):
            self._run.log(new, step=step)

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        import trackio

        if step > self._last.get("samples", -1):
            self._run.log({"samples": trackio.Table([*COLUMNS], _cells(samples))}, step=step)

    def close(self, *, ok: bool) -> None:  # noqa: ARG002
        self._run.finish()


def _later(figures: Figures, step: int, last: Mapping[str, int]) -> dict[str, float]:
    """Figures that the tracker has no value of, by each figure's last step there: a run that was killed may have logged
    a step and not yet its evaluation."""
    return {name: value for name, value in figures.items() if step > last.get(name, -1)}


BUILT_IN: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}

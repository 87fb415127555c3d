"""Views of the decisions around training: steps, health, checkpoints, trackers."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.manifest_fields.host import config
from tests.unit.manifest_fields.parts import Made, context, instead

from rlhf_api.job import RLHFJob
from rlhf_api.rules.own_algorithm import resolve
from rlhf_store.manifest import Root
from rlhf_trainer.data.dataset import Dataset, Datasets
from rlhf_trainer.data.stream import Mixture
from rlhf_trainer.metrics import tracking
from rlhf_trainer.roles import trainer
from rlhf_trainer.rollout.from_generators import GeneratorRollouts
from rlhf_trainer.training import loop, monitor
from rlhf_trainer.training.health import good, judge
from rlhf_trainer.training.online import OnlineTask


def steps(job: RLHFJob) -> Any:
    """The loop: which steps train, publish, evaluate and save."""
    events: list[Any] = []

    class Sent(GeneratorRollouts):
        def __init__(self, ctx: Any) -> None:
            self._ctx = ctx
            self.weights: Any = SimpleNamespace(version=-1, changed=lambda: "", figures=dict)

        def publish(self, _issue: Any, *, collected: bool) -> None:  # noqa: ARG002
            events.append(("send", self.version))
            self.weights.version = self.version

    class Steps(OnlineTask):
        def __init__(self) -> None:
            self._rollouts, self._pending = Sent(context(job)), None

        def collect(self, step: int) -> dict[str, float]:
            return {"tokens": step}

        def train(self, step: int) -> dict[str, float]:
            events.append(("train", step))
            return {}

        def evaluate(self, step: int) -> list[dict[str, Any]]:
            events.append(("evaluate", step))
            return []

        def export(self, step: int) -> None:
            events.append(("export", step))

        def reorder(self, times: int) -> None:
            pass

        def samples(self) -> list[dict[str, Any]]:
            return []

        begins = 0
        state = groups = blobs = export_files = updates = lambda _: {}

    saver = SimpleNamespace(
        check=lambda: None, busy=False, finish=lambda: None, rollbacks=lambda: 0,
        begin=lambda step, *_, **__: events.append(("save", step)),
        archive=SimpleNamespace(store=SimpleNamespace(url="u")),
    )  # fmt: skip
    loop.train(context(job), Steps(), saver, (), None)
    return events


def health(job: RLHFJob) -> Any:
    """Verdicts on a run's figures."""
    section, watches, verdicts = job.spec.health, {}, list[Any]()
    kl = [0.1, 0.2, 0.1, 0.3, 0.2, 5.0, 6.0, 7.0, 0.1, -3.0, -4.0, 0.2, 1.0]
    for step, value in enumerate(kl, 1):
        figures = {"kl_mean": value, "loss": float("nan") if step == 8 else 0.5, "x": -value}
        figures |= {"logprob_difference": step / 10, "logprob_outliers": 20.0, "logprob_difference_max": 3.0}
        figures["logprob_outlier_share"] = step / 100
        verdict = judge(section, watches, figures, step, begun=True, outliers=job.spec.outlier_limit())
        watches = verdict.watches
        verdicts.append((verdict, good(section, watches)))
    watcher = object.__new__(monitor.Monitor)
    watcher._ctx = context(job)
    return verdicts, watcher._most


def checkpoints(job: RLHFJob) -> Any:
    """The store, its deadline, what stays, and where a run begins; classes of models."""
    parts, committer, copied, archive, classes = list[Any](), Made(), Made(), Made(), Made()
    store = SimpleNamespace(check_writable=lambda: None, conditional=True, url="u")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Committer, "take_over", committer)
        patch.setattr(trainer.copying, "find", copied)
        patch.setattr(trainer.copying, "copy", lambda *_: SimpleNamespace(step=1))
        trainer.take_over(SimpleNamespace(store=store, read_root=lambda: (Root(), None)), config(job))
        parts += [(given[1], named["resume"]) for given, named in committer.told]
        parts += [given for given, _ in copied.told]
        for name in (
            "on_sigterm",
            "make_workdir",
            "prepare_model",
            "fit_problems",
            "make_task",
            "train",
            "shared",
        ):
            patch.setattr(trainer, name, lambda *_, **__: None)
        for name in ("Saver", "Tracking", "full_collections_by_hand"):
            patch.setattr(trainer, name, lambda *_, **__: nullcontext())
        no_rows = Dataset((), (), (), Mixture((), ()), (), None)
        patch.setattr(trainer, "open_datasets", lambda _: Datasets(no_rows, {}))
        patch.setattr(trainer, "leave_out", lambda *_: ([no_rows], {}))
        patch.setattr(trainer, "take_over", Made())
        patch.setattr(trainer, "Archive", archive)
        patch.setattr(trainer.architectures, "register", classes)
        patch.setattr(trainer.distributed, "barrier", lambda: None)
        ranks = SimpleNamespace(first=True, watch_each_other=lambda _: None, share=lambda make: make())
        trainer.work(config(job), ranks, None)
    return parts, [(url, options.patience) for (url, options), _ in archive.told], classes.told


def trackers(job: RLHFJob) -> Any:
    """Trackers with what they are made with."""
    with instead(tracking, "_Feed") as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "_run_id", lambda *_: "id")
        tracking.Tracking("job", job.spec, None).begin(0, 0)
    return [(spec.kind, spec.settings, make, run.project) for (spec, make, run, *_), _ in made.told]


def own(job: RLHFJob) -> Any:
    """The settings that an algorithm of one's own gets."""
    return repr(resolve(job.spec)) if ":" in job.spec.algorithm else None


VIEWS = (steps, health, checkpoints, trackers, own)

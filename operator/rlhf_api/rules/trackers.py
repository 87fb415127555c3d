"""Rules of `spec.trackers`."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    for i, tracker in enumerate(spec.trackers):
        if tracker.kind == "tensorboard" and tracker.project is not None:
            where = f"spec.trackers[{i}].project"
            yield Problem(where, f"TensorBoard has no projects; remove it; got {show(tracker.project)}")
        if "api_key" in tracker.settings or "token" in tracker.settings:
            where = f"spec.trackers[{i}].settings"
            yield Problem(
                where, "must not hold secrets; use spec.pods.secrets, or the environment of `rlhf run`"
            )

"""Argo CD's health of a job: the Lua of docs/guides/clusters over the operator's statuses, by Lua 5.1."""

from pathlib import Path
from typing import Any

import pytest
from lupa.lua51 import LuaRuntime
from tests.unit.operator.cluster.decide.test_stalled import unplaced
from tests.unit.operator.cluster.world import World, running

from rlhf_operator.cluster.decide.conditions import SILENT_SECONDS
from rlhf_operator.cluster.observe.desired import Wait
from rlhf_operator.supervision.process_state import Finish

SCRIPT = (Path(__file__).parents[5] / "docs" / "guides" / "clusters" / "argocd-health.lua").read_text()
LIBRARIES = ("string", "math", "io", "os", "debug", "coroutine")
"""Those that Argo CD does not open unless `useOpenLibs` is set."""


def health(body: dict[str, Any]) -> tuple[str, str]:
    lua = LuaRuntime(unpack_returned_tuples=True)
    for name in LIBRARIES:
        lua.globals()[name] = None
    lua.globals().obj = lua.table_from(body, recursive=True)
    result = dict(lua.execute(SCRIPT).items())
    assert result.keys() == {"status", "message"}
    return result["status"], result["message"]


def of(world: World) -> tuple[str, str]:
    """As Argo CD reads it from the API server: without what is null."""
    body = dict(world.job.body)
    if world.status is not None:
        body["status"] = world.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return health(body)


def test_from_its_making_to_its_end():
    world = World()
    assert of(world) == ("Progressing", "waits for the operator")
    world.step()
    assert of(world)[0] == "Progressing"
    assert "waiting for trainer" in of(world)[1]
    world = running()
    assert of(world) == ("Healthy", "Running 3/4")
    world.end("job-trainer-0", 0)
    world.settle()
    assert of(world) == ("Healthy", "Succeeded")
    world.overrides = ("spec.steps=9",)  # which nobody looks at any more
    assert of(world) == ("Healthy", "Succeeded")


def test_a_change_that_the_operator_has_not_read_yet():
    world = running()
    world.overrides = ("spec.suspend=true",)
    assert of(world) == ("Progressing", "waits for the operator to read the change")


def test_a_job_that_has_failed_and_one_that_is_refused():
    world = running("spec.trainer.backoffLimit=0")
    world.end("job-trainer-0", 1)
    world.settle()
    assert of(world)[0] == "Degraded"
    assert of(world)[1].startswith("BackoffLimitExceeded: trainer-0 ")
    refused = World(("spec.steps=-1",))
    refused.step()
    assert of(refused)[0] == "Degraded"
    assert of(refused)[1].startswith("ValidationFailed: spec.steps")
    refused.overrides = ()
    assert of(refused)[0] == "Progressing"
    refused.step()
    refused.step(refused=Finish("Failed", "InvalidPod", "spec.dnsPolicy: Unsupported value"))
    assert of(refused) == ("Degraded", "InvalidPod: spec.dnsPolicy: Unsupported value")
    refused.overrides = ("spec.pods.priorityClass=batch",)
    assert of(refused)[0] == "Progressing"


def test_a_job_that_does_not_get_on():
    world = running()
    silent = world.now.timestamp()
    world.step(SILENT_SECONDS, silent_since=silent)
    world.step(silent_since=silent)
    assert of(world)[0] == "Degraded"
    assert of(world)[1].startswith("TrainerUnreachable: the trainer's pod has not answered since ")
    starting = World(("spec.trainer.replicas=2",))
    starting.step()
    unplaced(starting, *starting.pods)
    starting.step()
    assert of(starting)[0] == "Degraded"
    assert of(starting)[1].startswith("Unschedulable: ")


def test_a_job_that_trains_while_a_further_generator_waits_for_a_node():
    world = running()
    world.overrides = ("spec.generator.replicas=2",)
    world.step()
    unplaced(world, "job-generator-1")
    world.step()
    assert of(world) == ("Progressing", "Running: waiting for generator 1/2")


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (World(("spec.suspend=true",)), "Suspended"),
        (
            World(("spec.runtime={name: a}",), runtime=Wait("RuntimeNotFound", "waiting for a")),
            "RuntimeNotFound: waiting for a",
        ),
    ],
    ids=["asked for", "waits for its runtime"],
)
def test_a_job_that_is_suspended(world, message):
    world.step()
    assert of(world) == ("Suspended", message)

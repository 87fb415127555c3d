"""Views of a run as its hosts make it: pods, processes, arithmetic and ends. Pure, of the code that acts."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.unit.operator.cluster.world import TODAY, World

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.contract.run import Process, RunConfig, command, environment, places, replicas, roles_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import Batch, Machine, Work, of_step, predicted
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Role
from rlhf_operator.cluster.decide.autoscale import required_replicas
from rlhf_operator.cluster.objects.companions import companions
from rlhf_operator.cluster.objects.gangs import members
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.observe.desired_reader import DesiredReader
from rlhf_operator.commands import plan as plan_command
from rlhf_operator.commands.plan_table import plan_lines
from rlhf_operator.console.manifest_arguments import with_runtime_of
from rlhf_operator.job.names import CONTROLLER
from rlhf_operator.job.snapshot import Job
from rlhf_operator.local.resources.gpus import variables
from rlhf_operator.local.resources.placement import decide as decide_placement
from rlhf_operator.supervision.budget import Restarts, current_window
from rlhf_operator.supervision.process_state import Ended, ProcessState
from rlhf_operator.supervision.progress_deadline import silence
from rlhf_operator.supervision.restart_policy import decide

HOUR, WINDOW = 3600.0, 2000.0


def config(job: RLHFJob) -> RunConfig:
    return RunConfig(job=job.metadata.name, spec=job.spec, workdir=".", resume=job.spec.checkpoint.resume)


def graph(job: RLHFJob) -> Any:
    """Nodes with their sizes and bounds, the roles, and what is trained."""
    dataflow = job.spec.graph
    return (
        list(map(repr, dataflow.nodes)),
        roles_of(job.spec),
        [replicas(job.spec, r) for r in roles_of(job.spec)],
    )


def arithmetic(job: RLHFJob) -> Any:
    """`rlhf plan`: batches, memory and seconds."""
    spec, sizes = job.spec, model_sizes(job.spec)
    lines = [*plan_command._batches(spec, Batch.of(spec)), *plan_lines(spec, sizes)]
    try:
        seconds = predicted(Work.of(spec, sizes, Batch.of(spec)), Machine(1e12, 1e11, 1e9))
    except InvalidJob as error:
        return lines, str(error)
    return lines, seconds, of_step(spec, seconds)


def pods(job: RLHFJob) -> Any:
    """Every pod, what they may reach, and the object of a gang scheduler."""
    made = Pinned("c", config(job), TODAY, {})
    every = [(role, i) for role in roles_of(job.spec) for i in range(replicas(job.spec, role))]
    beside = companions(made, "u", "ns", gang=members(made.config, ()))
    group = [body for body in beside if body["kind"] in ("NetworkPolicy", "PodGroup")]
    return [build_pod(made, NewPod(role, i, 1, resume=False), "u") for role, i in every], group


def processes(job: RLHFJob) -> Any:
    """Commands and environments of `rlhf run`."""
    made, commands = config(job), []
    for role in roles_of(job.spec):
        process = Process(role, 0, 8000, "127.0.0.1", "127.0.0.1:9")
        commands.append(command(made, process))
        commands.append(environment(made, process, config_file="f", termination_log="t"))
    return commands


def placement(job: RLHFJob) -> Any:
    """GPUs of each process on machines without any, with one and with many, or why there are none for it."""
    outcomes: list[Any] = []
    for present in ([], ["0"], [*map(str, range(9))]):
        try:
            outcome = decide_placement(job.spec, present, model_sizes(job.spec), 800e9)
        except InvalidJob as error:
            outcomes.append(str(error))
            continue
        shared = {"shared_gpus": outcome.shared_gpus, "shared_gpu_count": outcome.shared_gpu_count}
        run = config(job).model_copy(update=shared)
        ranks = [(role, i, rank) for role in roles_of(job.spec) for i, rank in places(job.spec, role)]
        each = [Process(role, i, 1, "127.0.0.1", "", rank) for role, i, rank in ranks]
        outcomes.append((outcome, [variables(run, process, present) for process in each]))
    return outcomes


def scaling(job: RLHFJob) -> Any:
    """Generators that the operator asks for after steps in which the trainer waited for so long."""
    scale, fields = job.spec.generator.autoscale, {"activity": "training", "total_steps": 4}
    waits = [TrainerStatus(**fields, trainer_idle=idle, generator_idle=0.5) for idle in (0.0, 0.3, 0.6, 0.99)]
    return scale and [required_replicas(job.spec, scale, wait) for wait in waits]


def restarts(job: RLHFJob) -> Any:
    """Actions after an end of each role's process: by its code, its cause and the restarts there were; and the end of a
    trainer that hangs for an hour."""
    ends = [
        Ended(at=5.0, code=code, reason="ended", cause=cause) for code, cause in ((1, ""), (137, "OOMKilled"))
    ]
    before = [Restarts(failures=n, total=n, since=HOUR - WINDOW, last=HOUR - WINDOW) for n in (0, 3)]
    actions = []
    for role in roles_of(job.spec):
        others = [ProcessState(r, 0, started=0.0, ready=True) for r in roles_of(job.spec) if r is not role]
        for ended in ends:
            for had in before:
                states = [*others, ProcessState(role, 0, started=0.0, ready=True, ended=ended)]
                actions.append(decide(job.spec, states, {role: had}, now=HOUR))
                actions.append(current_window(job.spec, {role: had}, role, HOUR))
    trainer = ProcessState(Role.TRAINER, 0, started=0.0, ready=True)
    return [*actions, silence(job.spec, [trainer], 1.0, "training")]


def cluster(job: RLHFJob) -> Any:
    """A job's way on a cluster: pods that stay pending, a trainer that makes no step, an end, and long after it."""
    world = Fixed()
    world.body = {**as_stored(job), "status": {}}
    plans = []
    if world.job.controller != CONTROLLER:
        return plans

    def step(seconds: float) -> None:
        todo = world.step(seconds)
        phase = world.status and (world.status.phase, world.status.message)
        plans.append(([new.role for new in todo.create], len(todo.delete), todo.stop, todo.expire, phase))

    step(1.0)
    step(HOUR)
    step(1.0)
    world.kubelet()
    world.trainer = TrainerStatus(activity="training", step=1, total_steps=4)
    step(1.0)
    step(HOUR)
    step(1.0)
    world.kubelet()
    if "job-trainer-0" in world.pods:
        world.end("job-trainer-0", code=0)
    step(HOUR)
    step(HOUR)
    step(1.0)
    return plans


def as_stored(job: RLHFJob) -> dict[str, Any]:
    """As an API server returns it."""
    body = job.model_dump(mode="json", by_alias=True)
    return {**body, "metadata": {"name": "job", "namespace": "ns", "uid": "u", "generation": 1}}


class Fixed(World):
    """A world of one job, whose spec stays."""

    @property
    def job(self) -> Job:
        status = self.status.model_dump(mode="json", by_alias=True) if self.status else {}
        return Job.of({**self.body, "status": status})


def runtime(job: RLHFJob) -> Any:
    """The runtime that a cluster is asked for, and what `rlhf run` says of it."""
    requests: list[Any] = []

    async def get(*where: Any) -> Any:
        requests.append(where)
        raise InvalidJob([])

    asyncio.run(
        DesiredReader._runtime(SimpleNamespace(_api=SimpleNamespace(get=get)), Job.of(as_stored(job)))
    )
    try:
        with_runtime_of(job, None, needed=True)
    except InvalidJob as error:
        return requests, str(error)
    return requests


VIEWS = (graph, arithmetic, pods, processes, placement, scaling, restarts, runtime)
"""Without `cluster`, which takes longer than the others together."""

"""`rlhf suspend`, `rlhf resume` and `rlhf scale`."""

import argparse
import sys

from rich.text import Text

from rlhf_api.contract.run import roles_of
from rlhf_api.contract.status import JobStatus, Phase
from rlhf_api.manifest.load import from_cluster
from rlhf_api.roles import Role

from ..console.exits import Failure
from ..console.text import span
from .client import Session
from .format import state
from .jobs import find, is_finished, poll_job, status_of
from .terminal import LiveView, put


async def suspend(session: Session, options: argparse.Namespace) -> int:
    return await _set(session, options, True)


async def resume(session: Session, options: argparse.Namespace) -> int:
    return await _set(session, options, False)


async def _set(session: Session, options: argparse.Namespace, suspended: bool) -> int:
    name, done = options.name, "suspended" if suspended else "resumed"
    target: Phase = "Suspended" if suspended else "Running"
    before = status_of(await find(session, name))
    if before is not None and is_finished(before):
        raise Failure(f"{name} has {before.phase.lower()} already; what is over cannot be {done}")
    patched = await session.patch_job(name, {"spec": {"suspend": suspended}})
    if not options.wait:
        put(f"{name} will be {done}; follow it with `{options.program} status {name} --watch`", sys.stdout)
        return 0
    generation, status = patched["metadata"]["generation"], before
    with LiveView(sys.stderr, spinner=True) as shown:
        async for observed in poll_job(session, name, shown.print_line, options.timeout):
            status = status_of(observed)
            if status is not None and status.observed_generation >= generation:
                if status.phase == target:
                    break
                if is_finished(status):
                    raise Failure(f"{name} has {status.phase.lower()} before it was {done}: {status.message}")
            shown.show(Text(f"{name}  {state(status)}"), state(status))
        else:
            raise Failure(
                f"{name} is not {done} after {span(options.timeout)} ({state(status)}); it goes on by itself: look "
                f"at it with `{options.program} status {name}`"
            )
    put(_result(name, status, options.program), sys.stdout)
    return 0


def _result(name: str, status: JobStatus, program: str) -> str:
    at = f"{name} is {status.phase} at step {status.step} of {status.total_steps}"
    if status.phase == "Running":
        return at
    saved = status.last_checkpoint
    checkpoint = (
        f"; its checkpoint of step {saved.step} is in {saved.uri}" if saved else "; it has no checkpoint"
    )
    return f"{at}{checkpoint}; let it go on with `{program} resume {name}`"


async def scale(session: Session, options: argparse.Namespace) -> int:
    name = options.name
    body = await find(session, name)
    status = status_of(body)
    if status is not None and is_finished(status):
        raise Failure(f"{name} has {status.phase.lower()} already; there is nothing to scale")
    spec = from_cluster(body).spec
    if Role.GENERATOR not in roles_of(spec):
        reason = "generates in its trainer" if spec.graph.generates else f"is a job of {spec.algorithm}"
        raise Failure(f"{name} {reason} and has no generators")
    patch = {"spec": {"replicas": options.generators}}
    await session.patch_job(name, patch, subresource="scale")
    put(f"{name}: generators {spec.generator.replicas} -> {options.generators}", sys.stdout)
    return 0

"""`kubectl rlhf selftest`: one short run of a job's own models, settings and pods, and a table of the checks."""

import argparse
import asyncio
import secrets
import signal
import sys

from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import load

from ..console.exits import FAILED, INTERRUPTED, Failure, Misuse, print_line
from ..kube.api_error import ApiError
from ..local.display.progress import Lines
from ..verbs.client import Session, explain
from ..verbs.jobs import check_served
from .checks import judged
from .derived import Overrides, as_arguments, first_half, on_cluster
from .on_cluster import OnCluster
from .table import passed
from .trial import carry_out, roles_to_kill, step_deadline

_LONGEST_NAME = 40


async def selftest(session: Session, options: argparse.Namespace) -> int:
    """Runs the selftest; `options.job` is the validated manifest."""
    job: RLHFJob = options.job
    own = job.metadata.namespace
    if own and options.namespace and own != options.namespace:
        raise Misuse(f"{options.file} is for namespace {own}, and -n says {options.namespace}; leave one out")
    session.namespace = own or session.namespace
    await check_served(session)
    name = trial_name(job.metadata.name, secrets.token_hex(2))
    # Each kill, the start, the resume and the end may take up to the deadline of a step.
    settings = on_cluster(job.spec, name, (len(roles_to_kill(job.spec)) + 3) * step_deadline(job.spec))

    def derive(overrides: Overrides) -> RLHFJob:
        given = [*options.set, *as_arguments(overrides), *as_arguments(settings)]
        return load(options.file, given, variables=options.variables)

    small = derive(first_half(job.spec)).spec
    trial = OnCluster(session, derive, name, Lines(sys.stdout, 0).event)
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    print_line(f"the selftest runs as the job {session.qualified(name)}", sys.stdout)
    try:
        observations = await carry_out(job.spec, trial)
    except asyncio.CancelledError:
        print_line("interrupted", sys.stderr)
        return INTERRUPTED
    finally:
        await _clear(trial, session, keep=options.keep)
    checks = judged(job.spec, observations, small.data.prompts_per_step, small.sampling.responses_per_prompt)
    if passed(checks, observations.cause):
        return 0
    if not options.keep:
        print_line("its pods and their logs are deleted; --keep keeps them", sys.stderr)
    return FAILED


def trial_name(name: str, mark: str) -> str:
    """A job's name of valid length; `mark` distinguishes several selftests."""
    end = f"-selftest-{mark}"
    return name[: _LONGEST_NAME - len(end)].rstrip("-") + end


async def _clear(trial: OnCluster, session: Session, *, keep: bool) -> None:
    """Removes the trial's job; on failure, prints what may be left: the selftest's own outcome has priority."""
    if keep:
        print_line(
            f"kept: {session.qualified(trial.name)}; `kubectl delete rlhfjob {trial.name}` ends it",
            sys.stderr,
        )
        return
    try:
        await trial.remove()
    except (Failure, ApiError) as error:
        problem = explain(error, session.cluster) if isinstance(error, ApiError) else error
        print_line(
            f"warning: the job {session.qualified(trial.name)} or its files may be left: {problem}; "
            f"`kubectl delete rlhfjob {trial.name}`, and runs/{trial.name} in its workspace",
            sys.stderr,
        )

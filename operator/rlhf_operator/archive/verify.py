"""`rlhf replay verify`: repeats a step of a run from its checkpoints, in the trainer's packages, and compares."""

import argparse
from pathlib import Path

from pydantic import ValidationError

from rlhf_api.contract.run import RUN_FILE, RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.job_files import provided

from ..console.trainer_packages import run_module

MODULE = "rlhf_trainer.commands.repeat"


def verify(options: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code: 1 where a result differs."""
    folder = Path(options.store)
    try:
        config = RunConfig.read(folder / RUN_FILE)
    except (OSError, ValidationError, ValueError) as error:
        message = f"needs a run's work directory, with the {RUN_FILE} of this release: {error}"
        raise InvalidJob([Problem(options.store, message)]) from error
    config = config.model_copy(update={"workdir": str(folder.resolve()), "resume": True})
    wishes = [] if options.step is None else ["--step", str(options.step)]
    with provided(config.spec.workspace.files):
        return run_module(MODULE, config, *wishes).returncode

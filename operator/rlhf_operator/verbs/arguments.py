"""Command-line arguments of the verbs. Imports nothing heavy: `rlhf run` loads them too."""

import argparse
from pathlib import Path

from rlhf_api.roles import Role

from ..console.included_files import add_include
from ..console.manifest_arguments import add_manifest, add_set, add_trial
from ..console.subcommands import Commands, add_command
from .argument_types import (
    checkpoint_step,
    count,
    duration,
    job_or_manifest,
    job_or_run,
    object_name,
    replicas,
    step,
)

VERBS = ("status", "list", "logs", "checkpoint", "suspend", "resume", "scale", "submit", "clone")


class _Verbs:
    """Adds the parsers of verbs, each with the options of a cluster."""

    def __init__(self, commands: Commands, program: str) -> None:
        self._commands, self._program, self._where = commands, program, cluster_options()

    def add(self, name: str, help: str) -> argparse.ArgumentParser:
        parser = add_command(self._commands, name, help=help, parents=[self._where])
        parser.set_defaults(program=self._program)
        return parser


def add_verbs(commands: Commands, program: str) -> None:
    """Adds a parser for each verb; `program`: what the user types before the verb."""
    verbs = _Verbs(commands, program)
    _add_status(verbs)
    _add_logs(verbs)
    _add_checkpoint(verbs)
    _add_suspend_and_resume(verbs)
    _add_scale(verbs)
    _add_submit(verbs)
    _add_clone(verbs)


def _add_status(verbs: _Verbs) -> None:
    status = verbs.add(
        "status", "show the status of a job or of a run of this machine, or list a namespace's jobs"
    )
    status.add_argument(
        "name",
        nargs="?",
        type=job_or_run,
        metavar="NAME|RUN",
        help="the job, or the work directory of a run of this machine, with a /; default: all jobs of the namespace",
    )
    _add_all_namespaces(status)
    how = status.add_mutually_exclusive_group()
    how.add_argument("-w", "--watch", action="store_true", help="follow the job to its end")
    _add_output(how)
    jobs = verbs.add("list", "list the jobs of a namespace, or the runs in a folder of this machine")
    jobs.add_argument(
        "runs", nargs="?", type=Path, metavar="RUNS", help="a folder of work directories, such as runs"
    )
    jobs.set_defaults(name=None, watch=False)
    _add_all_namespaces(jobs)
    _add_output(jobs)


def _add_logs(verbs: _Verbs) -> None:
    logs = verbs.add("logs", "print the logs of a job's pods, or of a run of this machine")
    logs.add_argument(
        "name",
        type=job_or_run,
        metavar="NAME|RUN",
        help="the job, or the work directory of a run of this machine, with a /",
    )
    logs.add_argument(
        "--role",
        choices=[*(role.value for role in Role), "all"],
        default=Role.TRAINER.value,
        help="the role whose pods' logs are printed; default: trainer",
    )
    logs.add_argument(
        "--index", type=count, metavar="N", help="print only the log of pod N of the role, counted from 0"
    )
    which = logs.add_mutually_exclusive_group()
    which.add_argument("-f", "--follow", action="store_true", help="follow the logs until the job has ended")
    which.add_argument(
        "-p",
        "--previous",
        action="store_true",
        help="print the last lines of the role's last failure, which the job's status keeps",
    )
    logs.add_argument("--tail", type=count, metavar="N", help="begin with the last N lines of each pod's log")


def _add_checkpoint(verbs: _Verbs) -> None:
    checkpoint = verbs.add(
        "checkpoint", "have a running job save a checkpoint now, or inspect a run's checkpoint store"
    )
    _add_name(
        checkpoint,
        "the job; or, with STORE: ls (list checkpoints), verify (read and check them), gc (delete garbage) or export "
        "(write a model)",
    )
    checkpoint.add_argument(
        "store",
        nargs="?",
        metavar="STORE",
        help="URL of a checkpoint store, its directory, or a run's work directory",
    )
    checkpoint.add_argument(
        "step",
        nargs="?",
        type=checkpoint_step,
        metavar="STEP",
        help="export: the step of the checkpoint, `latest`, or `best` by evaluation",
    )
    checkpoint.add_argument(
        "out", nargs="?", metavar="OUT", help="export: the folder to write, in Hugging Face format"
    )
    _add_timeout(checkpoint, "10m", "until the checkpoint is saved")
    checkpoint.add_argument(
        "--of",
        choices=["policy", "critic"],
        default="policy",
        help="export: the trained model; `policy` is also what algorithm reward trains; default: policy",
    )
    checkpoint.add_argument(
        "--adapter",
        choices=["merged", "alone"],
        help="export: a low-rank adapter merged into its model, or alone in PEFT's format; default: merged",
    )
    checkpoint.add_argument(
        "--model",
        metavar="DIR",
        help="export: folder or hub name of the model below a merged adapter; default: where the job found it",
    )
    checkpoint.add_argument(
        "--older-than",
        type=duration,
        default="1h",
        metavar="TIME",
        help="gc: delete only objects older than this, as a running job may be about to use younger ones; default: 1h",
    )
    checkpoint.add_argument(
        "--dry-run", action="store_true", help="gc: print what would be deleted, and delete nothing"
    )


def _add_suspend_and_resume(verbs: _Verbs) -> None:
    for name, help, until in (
        ("suspend", "save a checkpoint of a job and delete its pods", "until the job is suspended"),
        ("resume", "start a suspended job again from its checkpoint", "until the job runs"),
    ):
        parser = verbs.add(name, help)
        _add_name(parser)
        waiting = parser.add_mutually_exclusive_group()
        waiting.add_argument("--no-wait", dest="wait", action="store_false", help=f"do not wait {until}")
        _add_timeout(waiting, "20m", until)


def _add_scale(verbs: _Verbs) -> None:
    scale = verbs.add("scale", "change the number of generators of a job, while it runs")
    _add_name(scale)
    scale.add_argument("--generators", type=replicas, required=True, metavar="N", help="number of generators")


def _add_submit(verbs: _Verbs) -> None:
    submit = verbs.add("submit", "check a manifest and apply it to the cluster")
    add_manifest(submit)
    add_trial(submit)
    add_include(submit)
    submit.add_argument(
        "--force-conflicts", action="store_true", help="overwrite fields that another client has changed"
    )


def _add_clone(verbs: _Verbs) -> None:
    clone = verbs.add("clone", "print a manifest for a new run that starts from a checkpoint of another run")
    clone.add_argument(
        "run",
        type=job_or_manifest,
        metavar="NAME|FILE",
        help="a job on the cluster, or the manifest (.yaml, .json or package.module:name) of a run of this machine",
    )
    clone.add_argument("--from-step", type=step, required=True, metavar="N", help="step of the checkpoint")
    clone.add_argument(
        "--name", type=object_name, metavar="NEW", help="name of the new run; default: NAME-from-N"
    )
    clone.add_argument(
        "--workdir", type=Path, metavar="DIR", help="work directory of the run of FILE; default: runs/<name>"
    )
    add_set(clone)


def add_selftest(commands: Commands, program: str) -> None:
    """Adds the parser of a selftest on the cluster; `rlhf selftest` without it runs on this machine."""
    parser = add_command(
        commands,
        "selftest",
        help="check within minutes, on the cluster, that a job's models agree, learn and survive the deletion of pods",
        parents=[cluster_options()],
    )
    parser.set_defaults(program=program)
    add_manifest(parser)
    parser.add_argument(
        "--keep", action="store_true", help="keep the selftest's job and its files, to look into a failure"
    )


def cluster_options() -> argparse.ArgumentParser:
    """Flags for cluster and namespace, named as kubectl's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "-n",
        "--namespace",
        type=object_name,
        metavar="NAME",
        help="namespace of the job; default: the context's",
    )
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig; default: its current one"
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="file with the cluster's address and credentials; default: $KUBECONFIG or ~/.kube/config",
    )
    return parser


def _add_name(parser: argparse.ArgumentParser, help: str = "name of the job") -> None:
    parser.add_argument("name", type=object_name, metavar="NAME", help=help)


def _add_all_namespaces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="list the jobs of all namespaces")


def _add_output(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "-o", "--output", choices=["json"], help="print the object as the API server stores it"
    )


def _add_timeout(parser: argparse._ActionsContainer, default: str, until: str) -> None:
    parser.add_argument(
        "--timeout",
        type=duration,
        default=default,
        metavar="TIME",
        help=f"how long to wait {until}; default: {default}",
    )

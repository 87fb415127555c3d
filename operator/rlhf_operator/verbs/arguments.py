"""Command-line arguments of the verbs. Imports nothing heavy: `rlhf run` loads them too."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_api.base import names_function
from rlhf_api.roles import Role

from ..manifest_arguments import add_manifest, add_set, add_trial

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

VERBS = ("status", "list", "logs", "checkpoint", "suspend", "resume", "scale", "submit", "clone")
_UNITS = {"s": 1, "m": 60, "h": 3600}


class _Verbs:
    """Adds the parsers of verbs, each with the options of a cluster."""

    def __init__(self, commands: "Commands", program: str) -> None:
        self._commands, self._program, self._where = commands, program, _cluster_options()

    def add(self, name: str, help: str) -> argparse.ArgumentParser:
        parser = self._commands.add_parser(name, help=help, parents=[self._where])
        parser.set_defaults(program=self._program)
        return parser


def add_verbs(commands: "Commands", program: str) -> None:
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
    status = verbs.add("status", "show a job on the cluster, or list all of a namespace")
    status.add_argument(
        "name",
        nargs="?",
        type=_object_name,
        metavar="NAME",
        help="the job; all of the namespace unless given",
    )
    _add_all_namespaces(status)
    how = status.add_mutually_exclusive_group()
    how.add_argument("-w", "--watch", action="store_true", help="follow the job to its end")
    _add_output(how)
    jobs = verbs.add("list", "list all jobs of a namespace, as `status` does without a name")
    jobs.set_defaults(name=None, watch=False)
    _add_all_namespaces(jobs)
    _add_output(jobs)


def _add_logs(verbs: _Verbs) -> None:
    logs = verbs.add("logs", "print the logs of a job's pods")
    _add_name(logs)
    logs.add_argument(
        "--role",
        choices=[*(role.value for role in Role), "all"],
        default=Role.TRAINER.value,
        help="whose; the trainer's unless given",
    )
    logs.add_argument("--index", type=_count, metavar="N", help="only pod N of the role")
    which = logs.add_mutually_exclusive_group()
    which.add_argument("-f", "--follow", action="store_true", help="follow them until the job is over")
    which.add_argument(
        "-p",
        "--previous",
        action="store_true",
        help="the last lines of the role's last failure, kept in the status",
    )
    logs.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of each pod so far")


def _add_checkpoint(verbs: _Verbs) -> None:
    checkpoint = verbs.add(
        "checkpoint", "have a running job save a checkpoint now; or look into a run's store"
    )
    _add_name(checkpoint, "the job; or ls (list), verify (read and check) or gc (delete garbage), with STORE")
    checkpoint.add_argument(
        "store", nargs="?", metavar="STORE", help="a store's URL, or a directory: the store's or the run's"
    )
    _add_timeout(checkpoint, "10m", "until the checkpoint is made")
    checkpoint.add_argument(
        "--older-than",
        type=duration,
        default="1h",
        metavar="TIME",
        help="gc: leave what is younger, which a running job may be about to use; 1h",
    )
    checkpoint.add_argument("--dry-run", action="store_true", help="gc: only say what would be deleted")


def _add_suspend_and_resume(verbs: _Verbs) -> None:
    for name, help, until in (
        ("suspend", "have a job save a checkpoint and give its pods back", "until the job is suspended"),
        ("resume", "let a suspended job go on from its checkpoint", "until the job runs"),
    ):
        parser = verbs.add(name, help)
        _add_name(parser)
        waiting = parser.add_mutually_exclusive_group()
        waiting.add_argument("--no-wait", dest="wait", action="store_false", help=f"do not wait {until}")
        _add_timeout(waiting, "20m", until)


def _add_scale(verbs: _Verbs) -> None:
    scale = verbs.add("scale", "change how many generators a job has, while it runs")
    _add_name(scale)
    scale.add_argument("--generators", type=_replicas, required=True, metavar="N", help="how many")


def _add_submit(verbs: _Verbs) -> None:
    submit = verbs.add("submit", "check a manifest and hand it to the cluster")
    add_manifest(submit)
    add_trial(submit)
    submit.add_argument(
        "--force-conflicts", action="store_true", help="take fields over that others have changed"
    )


def _add_clone(verbs: _Verbs) -> None:
    clone = verbs.add("clone", "print a manifest for a new run that begins at a checkpoint of another one")
    clone.add_argument(
        "run",
        type=_run,
        metavar="NAME|FILE",
        help="the job on the cluster; or the manifest (.yaml, .json, package.module:name) of a run of this machine",
    )
    clone.add_argument(
        "--from-step", type=_step, required=True, metavar="N", help="the step of that run's checkpoint"
    )
    clone.add_argument(
        "--name", type=_object_name, metavar="NEW", help="of the new run; NAME-from-N unless given"
    )
    clone.add_argument(
        "--workdir", type=Path, metavar="DIR", help="where the run of FILE is; runs/<name> unless given"
    )
    add_set(clone)


def add_selftest(commands: "Commands", program: str) -> None:
    """Adds the parser of a selftest on the cluster; `rlhf selftest` without it runs on this machine."""
    parser = commands.add_parser(
        "selftest",
        help="prove within minutes that a job's models agree, learn, and survive the deletion of pods",
        parents=[_cluster_options()],
    )
    parser.set_defaults(program=program)
    add_manifest(parser)
    parser.add_argument(
        "--keep", action="store_true", help="leave its job and what that wrote, to look into a failure"
    )


def duration(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, or a bare number of seconds."""
    if re.fullmatch(r"\d+", text):
        return float(text)
    if not re.fullmatch(r"(\d+[hms])+", text):
        raise argparse.ArgumentTypeError(f"must be a duration such as 90s, 10m or 1h30m; got {text!r}")
    return float(sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([hms])", text)))


def _cluster_options() -> argparse.ArgumentParser:
    """Flags for cluster and namespace, named as kubectl's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "-n", "--namespace", type=_object_name, metavar="NAME", help="the job's; the context's unless given"
    )
    parser.add_argument(
        "--context", metavar="NAME", help="a context of the kubeconfig; its current one unless given"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="$KUBECONFIG or ~/.kube/config unless given")
    return parser


def _add_name(parser: argparse.ArgumentParser, help: str = "the job") -> None:
    parser.add_argument("name", type=_object_name, metavar="NAME", help=help)


def _add_all_namespaces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="list the jobs of all namespaces")


def _add_output(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-o", "--output", choices=["json"], help="the object as the API server has it")


def _add_timeout(parser: argparse._ActionsContainer, default: str, until: str) -> None:
    parser.add_argument(
        "--timeout",
        type=duration,
        default=default,
        metavar="TIME",
        help=f"how long to wait {until}; {default}",
    )


def _object_name(text: str) -> str:
    """A name that is safe as a part of a URL."""
    if "/" in text and (here := of_this_machine(Path(text))):
        raise argparse.ArgumentTypeError(f"must be the name of a job on a cluster; {here}")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"must be a name of a Kubernetes object, of a-z, 0-9, - and .; got {text!r}"
        )
    return text


def of_this_machine(workdir: Path) -> str:
    """Where status and logs of a run of this machine are, if that is its work directory; else ''."""
    status, logs = workdir / "status.json", workdir / "logs"
    return (
        f"for the run of this machine, the status is in {status}, the logs in {logs}"
        if status.exists()
        else ""
    )


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more; got {text!r}")
    return int(text)


def _run(text: str) -> str | Path:
    """A manifest's path, or the name of a job."""
    is_file = Path(text).suffix in (".yaml", ".yml", ".json") or names_function(text)
    return Path(text) if is_file else _object_name(text)


def _step(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more; got {text!r}")
    return int(text)


def _replicas(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more; got {text!r}")
    return int(text)

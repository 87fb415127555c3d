"""The trainer role: one rank of the gang. Rank 0 also serves the control API and calls the other roles."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed
from transformers import PreTrainedTokenizerBase

from rlhf_api.algorithms import teachers_of
from rlhf_api.contract.report import STORE_FAILS, CheckpointStatus, last_words
from rlhf_api.contract.run import EXIT_SUSPENDED, ProcessEnv, RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.roles import Role
from rlhf_api.rules.idle import list_idle_fields
from rlhf_api.sections.checkpoint import Origin
from rlhf_api.spec import Spec
from rlhf_store import copying
from rlhf_store.archive import Archive, Snapshot
from rlhf_store.committing import Committer
from rlhf_store.errors import DamagedSnapshot, MissingSnapshot, UnusableStore
from rlhf_store.manifest import Entry
from rlhf_store.retention import Retention
from rlhf_store.store import Store, StoreOptions

from ..checkpoint.rng import choose_kernels, seed_generators
from ..checkpoint.saver import Saver
from ..data.chat import check_template
from ..data.dataset import Dataset, Datasets, open_datasets
from ..data.template_warnings import template_warnings
from ..data.vision import IMAGES_OF, ImageReader
from ..dispatch.control import Control
from ..dispatch.roster import Roster, Stopped
from ..environments.workers.interpreter import check_local_interpreter
from ..export.model_files import remove_abandoned
from ..metrics.tracking import Tracking
from ..models.pretrained import architectures
from ..models.pretrained.fitting import fit_problems
from ..models.pretrained.vision import load_reader
from ..ops.row_check import RowChecker, check_all
from ..process import faults, progress, termination
from ..process.addresses import listen_host
from ..process.garbage import full_collections_by_hand
from ..process.role import on_sigterm, run_role
from ..ranks.context import Services, TrainerContext
from ..ranks.ranks import Message, Ranks, raise_if_rank_lost
from ..training.assembly import make_task, prepare_model
from ..training.loop import train
from ..training.monitor import ACTIVITY
from ..transport import rdma
from ..transport.http import HttpClient

log = logging.getLogger(__name__)

OVERLONG = 2048
"""Maximum length of the report of overlong rows, in characters."""
LAST_WORDS_SECONDS = 2.0
"""Time that an ending trainer gives its host to read the last metrics and checkpoint, seconds; a host polls twice a
second. One that has many jobs asks later, and reads the termination message.
"""


def run(env: ProcessEnv) -> int:
    check_world_size(env.config.spec, int(os.environ["WORLD_SIZE"]))
    choose_kernels(env.config.spec.trainer)
    ranks = Ranks.join(int(os.environ["LOCAL_RANK"]))
    log.info("rank %d of %d of %s, on %s", ranks.rank, ranks.world, env.config.job, ranks.device)
    seed_generators(ranks, env.config.spec.seed)
    services = connect(env) if ranks.first else None
    if ranks.device.type == "cuda":
        check_network(env, services)
    try:
        with raise_if_rank_lost():
            code = work(env.config, ranks, services, env.run)
    except Stopped as error:
        log.warning("%s", error)  # nothing is lost: the newest snapshot holds all training so far
        code = EXIT_SUSPENDED
    finally:
        if services is not None:
            services.control.wait_told(LAST_WORDS_SECONDS)
            services.http.close()
    if services is not None and code in (0, EXIT_SUSPENDED):
        termination.write(last_words(services.control.status), env.termination_log)
    return code


def check_world_size(spec: Spec, started: int) -> None:
    """Compares the number of ranks that were started with the manifest's. Raises InvalidJob where they differ: batches
    would be divided, and memory was planned, for other ranks."""
    required = spec.trainer.ranks
    if started != required:
        message = (
            f"has {required} ranks (replicas {spec.trainer.replicas} x processesPerReplica "
            f"{spec.trainer.processes_per_replica}), and WORLD_SIZE of this process is {started}; start every rank, or "
            "change the manifest, and look for another program that sets WORLD_SIZE"
        )
        raise InvalidJob([Problem("spec.trainer", message)])


def check_network(env: ProcessEnv, services: Services | None) -> None:
    """Warns, also the host, if NCCL on this node will not use the RDMA that the job requests."""
    if (reason := rdma.over_tcp(env.config, Role.TRAINER, os.environ)) is not None:
        log.warning("%s", reason)
        if services is not None:
            services.control.report(over_tcp=reason)


def work(config: RunConfig, ranks: Ranks, services: Services | None, run: str = "") -> int:
    """One rank's whole run."""
    spec, stop = config.spec, services.control.stop_requested if services else threading.Event()
    # A node that shuts down sends it to its ranks only; all ranks learn of it and stop at the next safe point.
    on_sigterm(stop.set)
    ranks.watch_each_other(stop)
    architectures.register(spec.model.architectures)
    datasets = open_datasets(spec)
    conversation = datasets.check() if ranks.first else None
    if ranks.first:
        check_local_interpreter(spec.environment)
        make_workdir(Path(config.workdir))
        for line in list_idle_fields(spec):
            log.warning("%s", line)
    tracking = (
        Tracking(config.job, spec, Path(config.workdir), run, partial(report_trackers, services))
        if ranks.first
        else None
    )
    patience = timedelta(seconds=spec.checkpoint.timeout_seconds)
    options = StoreOptions(patience, known=config.resume, retrying=partial(store_fails, services))
    archive = Archive(config.store, options)
    committer = take_over(archive, config, run) if ranks.first else None
    if ranks.first:  # which leads from here on
        remove_abandoned(Path(config.workdir))
    if services is not None and committer is not None:
        services.http.claim(committer.epoch)
    check_same_rows(ranks, datasets.checksums())
    tokenizer = prepare_model(config, ranks, datasets.rows)
    if conversation is not None:
        check_template(tokenizer, conversation)
        for line in template_warnings(tokenizer):
            log.warning("%s", line)
    if ranks.first and (problems := fit_problems(config, tokenizer)):
        raise InvalidJob(problems)
    reader = load_reader(config)
    checkers = make_checkers(spec, datasets, tokenizer, reader)
    fitting, images = leave_out(ranks, services, checkers)
    datasets = Datasets.in_order(datasets.held_out, fitting)
    data = datasets.checksums() | images
    ctx = TrainerContext(config.job, spec, Path(config.workdir), ranks, tokenizer, services, stop, data)
    task = make_task(ctx, config, datasets, reader)
    on_commit = partial(committed, ctx, config.store)
    with (
        tracking or nullcontext(),
        Saver(ranks, archive, committer, committed=on_commit, reached=faults.point) as saver,
        full_collections_by_hand(),
    ):
        code = train(ctx, task, saver, shared(ranks, committer.cuts if committer else ()), tracking)
    # When one rank exits, suspended, torchrun ends the others: so wait until rank 0 has saved everything.
    distributed.barrier()
    return code


def report_trackers(services: Services | None, failing: Sequence[str]) -> None:
    """Tells the host of the trackers that fail."""
    if services is not None:
        services.control.report(trackers_failed=tuple(failing))


def store_fails(services: Services | None, reason: str) -> None:
    """Counts a sign of progress, and reports the reason, if any, as the trainer's activity."""
    progress.sign()
    if reason and services is not None:
        services.control.report(activity=f"{STORE_FAILS}: {reason}"[:ACTIVITY])


def take_over(archive: Archive, config: RunConfig, run: str = "") -> Committer:
    """Takes over the store: from now on this trainer alone may add snapshots; see `Committer.take_over`.

    A store that an earlier attempt of this same `run` has left is gone on from, whatever the configuration says: an
    operator may have died before it knew of that attempt. Raises UnusableStore if the store cannot be written, and
    InvalidJob if it holds another run's snapshots though this one is to start anew.
    """
    store, settings = archive.store, config.spec.checkpoint
    store.check_writable()
    if not store.conditional:
        log.warning(
            "%s has no conditional writes, so two trainers that write there at once may not notice each other",
            store.url,
        )
    if not (resume := config.resume):
        root, _ = archive.read_root()
        resume = run != "" and run == root.run
        if root.cuts and not resume:
            message = (
                f"{store.url} holds the checkpoints of an earlier run, up to step {root.cuts[-1].step}; "
                "go on from them with --resume or `spec.checkpoint.resume: true`, or name another place"
            )
            raise InvalidJob([Problem("spec.checkpoint.store", message)])
    retention = Retention(last=settings.keep_last, every=settings.keep_every, best=settings.keep_best)
    committer = Committer.take_over(archive, retention, reached=faults.point, resume=resume, run=run)
    if not committer.cuts and settings.start_from is not None:
        copy_origin(settings.start_from, store, committer)
    elif config.resume and not committer.cuts:
        log.warning("no checkpoint in %s: starting from step 0", store.url)
    return committer


def copy_origin(origin: Origin, store: Store, committer: Committer) -> None:
    """Copies the snapshot from which the run starts. Raises InvalidJob if it cannot be read."""
    where = "spec.checkpoint.startFrom"
    try:
        snapshot = copying.find(origin.store, origin.step)
    except UnusableStore as error:
        raise InvalidJob([Problem(f"{where}.store", str(error))]) from None
    except MissingSnapshot as error:
        raise InvalidJob([Problem(f"{where}.step", str(error))]) from None
    except DamagedSnapshot as error:
        raise InvalidJob([Problem(where, f"{origin.store}: {error}; take another step")]) from None
    try:
        copied = copying.copy(snapshot, store, committer)
    except DamagedSnapshot as error:
        raise InvalidJob([Problem(where, f"{error}; take another step")]) from None
    log.info("copied the checkpoint of step %d from %s", copied.step, origin.store)


def shared(ranks: Ranks, entries: Sequence[Entry]) -> list[Entry]:
    """Broadcast of rank 0's entries."""
    _, header = ranks.share(lambda: ({}, {"entries": [entry.model_dump(mode="json") for entry in entries]}))
    return [Entry.model_validate(fields) for fields in header["entries"]]


def committed(ctx: TrainerContext, url: str, snapshot: Snapshot) -> None:
    """Reports a committed snapshot to the host."""
    ctx.report(last_checkpoint=CheckpointStatus(step=snapshot.step, time=snapshot.time, uri=url))


def make_workdir(folder: Path) -> None:
    """Creates the work directory. Raises InvalidJob if it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the work directory {folder} cannot be made: {error.strerror}; mount a volume there"
        raise InvalidJob([Problem("workdir", message)]) from error


def connect(env: ProcessEnv) -> Services:
    """Rank 0's control API and its connections. The API has a thread of its own, since thousands of streams may keep
    the requests' event loop busy. Raises OSError if the port is taken."""
    control, http = Control(env.config.spec.steps), HttpClient(env.token)
    EventLoop("control").run(control.serve(listen_host(env.host), env.prover()))
    return Services(control, http, Roster(control, http), env.host, env.token)


def make_checkers(
    spec: Spec, datasets: Datasets, tokenizer: PreTrainedTokenizerBase, reader: ImageReader | None
) -> list[RowChecker]:
    """One for each of the datasets; no teacher is asked about held-out rows."""
    kind, names = spec.graph.rows, [teacher.name for teacher in teachers_of(spec)]
    checkers = [RowChecker(datasets.rows, kind, tokenizer, spec.data, reader, names)]
    checkers += [RowChecker(each, kind, tokenizer, spec.data, reader) for each in datasets.held_out.values()]
    if datasets.text is not None:
        checkers.append(RowChecker(datasets.text, "responses", tokenizer, spec.data))
    return checkers


def leave_out(
    ranks: Ranks, services: Services | None, checkers: Sequence[RowChecker]
) -> tuple[list[Dataset], dict[str, int]]:
    """The datasets without the rows that `spec.data.overlong` leaves out, the same on every rank, and checksums of the
    images of those that have any; rank 0 renders and tokenizes all rows, for any time. Raises InvalidJob for rows that
    do not fit."""

    def check() -> Message:
        reports = check_all(checkers)
        arrays = {str(i): torch.tensor(each.left_out, dtype=torch.int64) for i, each in enumerate(reports)}
        images = {
            f"{IMAGES_OF}{checker.dataset.name}": each.images
            for checker, each in zip(checkers, reports, strict=True)
            if each.images
        }
        messages = [each.message for each in reports if each.message]
        return arrays, {"messages": messages, "images": images}

    arrays, header = ranks.share(check)
    for message in header["messages"] if ranks.first else ():
        log.warning("%s", message)
    if services is not None and header["messages"]:
        services.control.report(overlong="; ".join(header["messages"])[:OVERLONG])
    left_out = [arrays[str(i)].tolist() for i in range(len(checkers))]
    fitting = [
        checker.dataset.without(rows) if rows else checker.dataset
        for checker, rows in zip(checkers, left_out, strict=True)
    ]
    return fitting, header["images"]


def check_same_rows(ranks: Ranks, own: Mapping[str, int]) -> None:
    """Compares this rank's checksums of the data with rank 0's; a collective. Raises InvalidJob on a rank that read
    other rows: the ranks would train on some twice, and on others never."""
    _, firsts = ranks.share(lambda: ({}, dict(own)))
    if others := [name for name, sum_ in own.items() if firsts[name] != sum_]:
        message = (
            f"rank {ranks.rank} of the trainer read other rows than rank 0, or another order; give every node the same "
            "file, and seed what is random in a function"
        )
        raise InvalidJob([Problem(name, message) for name in others])


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    run_role(run)

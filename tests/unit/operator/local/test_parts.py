"""The launcher's smaller parts: ports, ends in words, status, files of a job."""

import asyncio
import datetime
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.manifests import job
from tests.unit.api.rules.test_teachers import TAUGHT

from rlhf_api.contract.report import CheckpointStatus, TrainerStatus
from rlhf_api.contract.run import Membership, Process, RunConfig, command, on_one_machine, roles_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.model_files import matrices
from rlhf_api.host import oom, reaper
from rlhf_api.host.oom import OomKills
from rlhf_api.manifest.load import load
from rlhf_api.roles import Role
from rlhf_operator.cli import main
from rlhf_operator.local.display.progress import Lines
from rlhf_operator.local.host import Host
from rlhf_operator.local.metrics_server import check_port
from rlhf_operator.local.preflight.files import check_files, of_a_cluster
from rlhf_operator.local.preflight.models import layer_problems
from rlhf_operator.local.processes.process import Supervised
from rlhf_operator.local.records import workdir
from rlhf_operator.local.resources.ports import assign, place, reserve
from rlhf_operator.local.trainer import Trainer
from rlhf_operator.status.job_status import first_status, job_status
from rlhf_operator.supervision.exit_reasons import cause, exit_words, failure_type, most_informative_line
from rlhf_operator.supervision.process_state import Ended, Finish, Kill, ProcessState
from rlhf_operator.supervision.role_client import ControlClient

OOM = " for lack of memory (the kernel's count of out-of-memory kills rose by 1)"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def _free_range(count: int) -> int:
    """The first of so many ports in a row, kept from every other job of this machine."""
    while True:
        (base,) = assign(["the first"], None).values()
        if all(reserve(base + i) for i in range(1, count)):
            return base


def test_ports_are_free_and_different() -> None:
    names = [f"p{i}" for i in range(20)]
    ports = assign(names, None)
    assert list(ports) == names
    assert len(set(ports.values())) == 20
    config = RunConfig(job="j", spec=job("spec.trainer.replicas=2").spec, workdir="/w")
    base = _free_range(9)
    processes = place(config, base)
    assert [(p.name, p.port) for p in processes[:3]] == [
        ("trainer-0", base),
        ("trainer-1", base + 1),
        ("generator-0", base + 2),
    ]
    assert {p.master for p in processes} == {f"127.0.0.1:{base + len(processes)}"}


def test_the_processes_of_a_generator_meet_at_a_port_of_their_own() -> None:
    pairs = "spec.generator={replicas: 2, tensorParallelSize: 2, podsPerReplica: 2}"
    processes = place(RunConfig(job="j", spec=job(pairs).spec, workdir="/w"), None)
    pair_processes = [p for p in processes if p.role is Role.GENERATOR]
    assert [p.name for p in pair_processes] == [
        "generator-0",
        "generator-0-1",
        "generator-1",
        "generator-1-1",
    ]
    for first, second in (pair_processes[:2], pair_processes[2:]):
        assert (first.master, first.port) == (second.master, second.port), (
            "the second's is the first one's HTTP"
        )
    others = {p.master for p in processes if p.role is not Role.GENERATOR}
    meeting = {pair_processes[0].master, pair_processes[2].master} | others
    assert len(meeting) == 3
    assert not {int(where.rpartition(":")[2]) for where in meeting} & {p.port for p in processes}


def test_a_port_is_given_once_though_nobody_listens_there_yet(monkeypatch) -> None:
    monkeypatch.setattr(random, "sample", lambda ports, _count: list(ports))
    (first,), (second,) = (assign(["a role's"], None).values() for _ in range(2))
    assert first < second
    with socket.socket() as role:
        role.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as asyncio, vLLM and torch do
        role.bind(("127.0.0.1", first))
        role.listen()


def test_the_trainer_is_told_of_those_that_run_once_for_each_change(tmp_path: Path) -> None:
    places = [
        Process(role, 0, 1 + i, "127.0.0.1", "")
        for i, role in enumerate((Role.TRAINER, Role.GENERATOR, Role.REWARD))
    ]
    trainer, generator, _ = processes = [Supervised(each, tmp_path) for each in places]
    for each in processes:
        each.uid, each.started, each.ready = f"the first {each.process.name}", 1.0, True
    pushed: list[list[str]] = []

    class Control(ControlClient):
        def __init__(self) -> None:
            self.takes = True

        async def members(self, _address: str, membership: Membership) -> bool:
            pushed.append([member.uid for member in membership.members])
            return self.takes

    control, host = Control(), Trainer(trainer, Lines(io.StringIO(), 4), None)

    def tell(*, takes: bool = True) -> None:
        control.takes = takes
        asyncio.run(host.tell_members(control, processes))

    tell()
    tell()
    generator.ended = Ended(2.0, 137, "was ended by SIGKILL")
    tell(takes=False)
    tell()
    generator.ended, generator.uid = None, "the next generator-0"
    tell()
    both, alone = ["the first generator-0", "the first reward-0"], ["the first reward-0"]
    assert pushed == [both, alone, alone, ["the next generator-0", *alone]]


class Reporting(ControlClient):
    """Answers with these fields of the trainer's status, one after the other."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = iter(reports)

    async def status(self, _address: str) -> TrainerStatus:
        return TrainerStatus.model_validate({"activity": "training", "totalSteps": 4, **next(self.reports)})


def follow_trainer(folder: Path, *reports: dict[str, Any]) -> Iterator[str]:
    """The output so far, after each of the trainer's reports."""
    out, control = io.StringIO(), Reporting(*reports)
    process = Supervised(Process(Role.TRAINER, 0, 1, "http://127.0.0.1:1", "/"), folder)
    process.started, process.ready = 1.0, True
    trainer = Trainer(process, Lines(out, 4), None)
    for _ in reports:
        asyncio.run(trainer.read(control))
        yield out.getvalue()


def test_changed_data_is_told_once_for_each_start_that_finds_it(tmp_path: Path) -> None:
    reports = [{"dataChanged": path} for path in ("a.jsonl", "a.jsonl", None, "a.jsonl")]
    assert [text.count("a.jsonl") for text in follow_trainer(tmp_path, *reports)] == [1, 1, 1, 2]


def test_trackers_that_fail_are_told_once_each(tmp_path: Path) -> None:
    """Later details of a message are in the last lines of the run."""
    wandb, mlflow = "tracker wandb cannot be begun: no key", "tracker mlflow cannot be begun: no server"
    failing = [
        (wandb,),
        (wandb, mlflow),
        (wandb,),
        (wandb, mlflow),
        (f"{wandb}; 2 lines were not sent", mlflow),
    ]
    *_, text = follow_trainer(tmp_path, *({"trackersFailed": lines} for lines in failing))
    assert [line.split(" ", 1)[1] for line in text.splitlines()] == [wandb, mlflow, mlflow]


def test_a_taken_port_is_named_with_its_process() -> None:
    port = _free_range(2) + 1
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(InvalidJob, match=rf"port {port} of b is taken; .* choose another --base-port"):
            assign(["a", "b"], port - 1)
    with pytest.raises(InvalidJob, match="ports 65535 to 65536 must lie in 1 to 65535"):
        assign(["a", "b"], 65535)


def test_a_port_for_metrics_that_cannot_be_had_is_refused() -> None:
    port = _free_range(3)
    places = [Process(Role.TRAINER, 0, port, "127.0.0.1", f"127.0.0.1:{port + 1}")]
    check_port(None, places)
    check_port(port + 2, places)
    with pytest.raises(InvalidJob, match=f"--metrics-port: port {port} is taken; choose another"):
        check_port(port, places)
    with pytest.raises(InvalidJob, match=f"--metrics-port: port {port + 1} is taken"):
        check_port(port + 1, places)  # where the trainers meet
    with pytest.raises(InvalidJob, match="--metrics-port: must be 1 to 65535; got 0"):
        check_port(0, places)


def test_ends_in_words() -> None:
    assert exit_words(3) == "exited with code 3"
    assert exit_words(137) == "was ended by SIGKILL"
    assert exit_words(255) == "exited with code 255"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("a\n\n last \n", "last"),
        ("", ""),
        ("Traceback\n  x\nValueError: bad\nclean up\n", "ValueError: bad"),
        (
            "[rank1]: torch.OutOfMemoryError: no memory\nX.errors.ChildFailedError: \n====\n",
            "[rank1]: torch.OutOfMemoryError: no memory",
        ),
        (
            "(EngineCore pid=7) ERROR 11-21 11:24:37 [core.py:1512] a.InductorError: no compiler\n"
            "(APIServer pid=5) ERROR 11-21 11:24:37 [async_llm.py:906] b.EngineDeadError: see above\nleaked 3\n",
            "a.InductorError: no compiler",
        ),
        (
            "(EngineCore pid=7) ERROR 11-21 11:24:37 [core.py:1512] ValueError: no such head\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
            "ValueError: no such head",
        ),
        (
            "OSError: [Errno 28] No space left on device: 'a'\nDuring handling\nKeyError: 'half written'\n",
            "OSError: [Errno 28] No space left on device: 'a'",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
            "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            "[rank0]:[E1121 11:24:37.5 NCCL.cpp:633] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.\n"
            "Current thread 0x00007f (most recent call first):\n",
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 "
            "milliseconds before timing out.",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nleaked 3\n",
            "std::bad_alloc",
        ),
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
            '  File "a.py", line 5 in multiply\n\nExtension modules: numpy.linalg (total: 1)\n'
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "Fatal Python error: Segmentation fault",
        ),
    ],
)
def test_the_telling_line_of_a_log(log: str, line: str) -> None:
    assert most_informative_line(log) == line


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("exited with code 1: ValueError: bad", ""),
        ("exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried", "CudaOutOfMemory"),
        ("exited with code 1: RuntimeError: CUDA error: uncorrectable ECC error encountered", "GpuError"),
        ("exited with code 1: RuntimeError: No CUDA GPUs are available", "GpuError"),
        ("exited with code 70: torch.OutOfMemoryError: CUDA out of memory. Tried", "CudaOutOfMemory"),
        ("exited with code 70: ValueError: bad", "EngineDead"),
        ("exited with code 70: vLLM's process EngineCore (pid 7) was ended by SIGSEGV", "EngineDead"),
        (
            f"exited with code 70: vLLM's process EngineCore (pid 7) was ended by SIGKILL{OOM}",
            "HostOutOfMemory",
        ),
        (f"was ended by SIGKILL{OOM}", "HostOutOfMemory"),
        ("ran out of memory (OOMKilled)", "HostOutOfMemory"),
        ("exited with code 1: MemoryError: ", "HostOutOfMemory"),
        ("exited with code 1: OSError: [Errno 28] No space left on device: '/a'", "DiskFull"),
        (
            "exited with code 1: StoreError: the store file:///a fails: No space left on device (os error 28)",
            "DiskFull",
        ),
        (
            "exited with code 1: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93",
            "NcclError",
        ),
        ("was ended by SIGABRT: Watchdog caught collective operation timeout: WorkNCCL(", "NcclTimeout"),
        ("hung: it gave no sign of life for 120 s", "Hung"),
        ("made no progress for 600 s (spec.trainer.progressDeadlineSeconds)", "NoProgress"),
    ],
)
def test_the_type_of_a_failure_by_its_words(words: str, kind: str) -> None:
    assert failure_type(words) == kind


LOST = "RankLost: another rank of the trainer has ended, see the log of its pod or process (gloo)"
ENDED = "2026-11-26 22:02:10,187 ERROR rlhf"
EPOLL = (
    "[enforce fail at /x/gloo/gloo/transport/tcp/loop.cc:105] fd_ != -1. epoll_create: Too many open files"
)
GLOO = "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:5525: Connection reset by peer."


@pytest.mark.parametrize(
    ("message", "log", "silent", "words"),
    [
        ("loss is nan\n", "ValueError: other", False, "loss is nan"),
        ("", "ValueError: bad\nbye", False, "ValueError: bad"),
        (
            "",
            f"bye\n{ENDED}: a.jsonl: cannot be read\n{ENDED}: a.end cannot be written",
            False,
            "a.jsonl: cannot be read",
        ),
        ("", "step 3 done", True, ""),  # SIGKILL: its last line is about something else
        ("loss is nan", "", True, "loss is nan"),
        (LOST, "[rank1]: ValueError: bad\nx.RankLost: another\n", False, "[rank1]: ValueError: bad"),
        (LOST, "x.RankLost: another\nbye", False, LOST),  # the cause is in another pod's log
        (LOST, f"ValueError: bad\nRuntimeError: {GLOO}\nx.RankLost: {GLOO}", False, "ValueError: bad"),
        (LOST, f"RuntimeError: {GLOO}\nx.DistNetworkError: Broken pipe\nx.RankLost: {GLOO}", False, LOST),
        (LOST, f"RuntimeError: {EPOLL}\nbye", False, f"RuntimeError: {EPOLL}"),
        (LOST, "ValueError: an old one", True, ""),
    ],
)
def test_the_cause_is_quoted_and_not_what_followed(message: str, log: str, silent: bool, words: str) -> None:
    assert cause(message, log, silent=silent) == words


def test_status_follows_what_is_seen() -> None:
    spec = job().spec
    states = [ProcessState(role, 0) for role in Role]
    status = job_status(spec, states, {}, None, before=first_status(spec, None), now=NOW)
    assert (status.phase, status.start_time, status.estimated_end) == (
        "Pending",
        "2026-01-01T00:00:00Z",
        None,
    )
    states = [ProcessState(role, 0, started=1.0, ready=role is not Role.REWARD) for role in Role]
    later = NOW + datetime.timedelta(seconds=5)
    status = job_status(
        spec, states, {}, TrainerStatus(activity="starting", totalSteps=4), before=status, now=later
    )
    assert (status.phase, status.message) == ("Provisioning", "waiting for reward 0/1")
    (condition,) = status.conditions
    assert (condition.status, condition.reason) == ("False", "RolesNotReady")
    assert condition.last_transition_time == "2026-01-01T00:00:00Z"  # it has been False all along

    trainer = TrainerStatus(
        activity="training",
        total_steps=4,
        step=1,
        seconds_per_step=10.0,
        reward_mean=0.5,
        responses_continued=3.0,
        importance_effective=0.75,
    )
    up = [ProcessState(role, 0, started=1.0, ready=True) for role in Role]
    status = job_status(spec, up, {Role.REWARD: 1}, trainer, before=status, now=later)
    assert (status.phase, status.reward, status.estimated_end) == ("Running", 0.5, "2026-01-01T00:00:35Z")
    assert status.conditions[0].last_transition_time == "2026-01-01T00:00:05Z"
    assert (status.responses_continued, status.importance_effective) == (3, 0.75)
    assert status.roles[Role.REWARD].restarts == 1

    ended_states = [ProcessState(role, 0, started=1.0, ready=True, ended=Ended(9.0, 1, "x")) for role in Role]
    finish = Finish("Failed", "NoCheckpoint", "y" * 3000)
    status = job_status(spec, ended_states, {}, None, before=status, now=later, finish=finish)
    assert (status.phase, status.step, status.reward, len(status.message)) == ("Failed", 1, 0.5, 1024)


def test_a_trainer_that_starts_again_has_the_steps_of_the_one_before_until_it_knows_its_own() -> None:
    spec = job().spec
    up = [ProcessState(role, 0, started=1.0, ready=True) for role in Role]
    saved = CheckpointStatus(step=20, time="2026-01-01T00:00:00Z", uri="file:///x")
    begun = TrainerStatus(activity="starting", total_steps=30)
    reports = (
        begun,  # nothing is saved yet
        TrainerStatus(activity="training", total_steps=30, step=23, last_checkpoint=saved),
        begun,
        TrainerStatus(activity="restoring", total_steps=30, step=20, last_checkpoint=saved),
    )
    status, steps = first_status(spec, None), []
    for report in reports:
        status = job_status(spec, up, {}, report, before=status, now=NOW)
        steps.append(status.step)
    assert steps == [0, 23, 23, 20]


def test_a_broken_rule_of_health_is_a_condition_until_a_step_keeps_it() -> None:
    spec = job().spec
    up = [ProcessState(role, 0, started=1.0, ready=True) for role in Role]
    breach = {
        "step": 7,
        "since": 6,
        "reason": "MetricAbove",
        "action": "warn",
        "message": "kl 2",
        "rollbacks": 1,
    }
    status, healthy = first_status(spec, None), []
    for step, health in ((6, None), (7, breach), (7, None), (8, None), (8, breach)):
        trainer = TrainerStatus.model_validate(
            {"activity": "training", "totalSteps": 9, "step": step, "health": health}
        )
        status = job_status(spec, up, {}, trainer, before=status, now=NOW)
        healthy.append([(c.status, c.reason, c.message) for c in status.conditions if c.type == "Healthy"])
    broken, holds = [("False", "MetricAbove", "kl 2")], [("True", "RulesHold", "")]
    assert healthy == [[], broken, broken, holds, holds]
    assert status.health is not None
    assert status.health.rollbacks == 1


def test_files_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/no", "runs/yes", "runs/tokenizer"):
        Path(folder).mkdir(parents=True)
    Path("runs/yes/config.json").write_text("{}")
    Path("runs/yes/model.safetensors").touch()
    Path("runs/tokenizer/tokenizer_config.json").touch()
    Path("p.jsonl").write_text('{"prompt": "x"}\n{"promt": "x"}\n')
    Path("good.jsonl").write_text('{"prompt": "x"}\n')
    Path("mine.py").write_text(
        "raise SystemExit('is not imported')\ndef judge(prompts, responses, rows): ...\n"
    )
    spec = job(
        "spec.data.train=[good.jsonl, p.jsonl]",
        "spec.evaluation.data=[none.jsonl]",
        "spec.evaluation.function=mine:judge",
        "spec.reward.functions[0].function=other.module:f",
        "spec.model.policy=runs/yes",
        "spec.model.reward=runs/no",
        "spec.model.critic=runs/typo",
        "spec.model.reference=owner/name-on-the-hub",
        "spec.model.tokenizer=./runs/tokenizer",
    ).spec
    assert [str(problem) for problem in check_files(spec)] == [
        "spec.data.train[1]: p.jsonl:2: prompt: is missing; the row has 'promt'; rename 'promt'",
        "spec.evaluation.data[0]: none.jsonl: cannot be read: No such file or directory",
        "spec.model.critic: no such directory, and no hub name (`owner/name`); got 'runs/typo'",
        "spec.model.reward: must be in Hugging Face format, but has no config.json; got 'runs/no'",
        f"spec.reward.functions[0].function: no module 'other' in {tmp_path} or installed; got 'other.module:f'",
    ]


def test_a_status_has_the_processes_of_each_teacher() -> None:
    spec = job(*TAUGHT).spec
    states = [ProcessState(role, 0, started=1.0, ready=True) for role in Role]
    states.append(ProcessState(Role.REFERENCE, 1, started=1.0))
    status = job_status(spec, states, {}, None, before=first_status(spec, None), now=NOW)
    assert status.message == "waiting for reference 1/3 (small 1/2, large 0/1)"
    teachers = status.roles[Role.REFERENCE].teachers
    assert [(each.name, each.processes, each.ready) for each in teachers] == [
        ("small", "reference-0 to 1", 1),
        ("large", "reference-2", 0),
    ]
    assert not status.roles[Role.REFERENCE].can_serve, "no row of large can be judged"
    assert status.roles[Role.TRAINER].can_serve


def test_models_and_rows_of_several_teachers_are_checked_before_anything_starts(tmp_path: Path) -> None:
    for name, text in (("a", '{"prompt": "x"}\n'), ("b", '{"prompt": "x", "teacher": "c"}\n')):
        (tmp_path / f"{name}.jsonl").write_text(text)
    spec = job(
        *("spec.algorithm=distillation", "spec.ppo={}", "spec.reward={}", "spec.model={policy: org/student}"),
        *("spec.sampling={}", "spec.distillation={minibatchSize: 8, teachers: [{name: t, model: ./none}]}"),
        f"spec.data={{promptsPerStep: 8, sources: [{{path: {tmp_path}/a.jsonl, teacher: t}}, "
        f"{{path: {tmp_path}/b.jsonl}}]}}",
    ).spec
    assert [str(problem) for problem in check_files(spec)] == [
        f"spec.data.sources[1]: {tmp_path}/b.jsonl:1: teacher: must be one of spec.distillation.teachers: t; got 'c'",
        "spec.distillation.teachers[t].model: no such directory, and no hub name (`owner/name`); got './none'",
    ]


def test_a_language_model_is_no_reward_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x"}\n')
    given = (f"spec.data.train=[{tmp_path / 'prompts.jsonl'}]", "spec.reward.functions=[]")
    says = {}
    for kind in ("LlamaForCausalLM", "LlamaForSequenceClassification", "MyReward"):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
        says[kind] = [str(p) for p in check_files(job(*given, f"spec.model.reward={tmp_path}").spec)]
    (problem,) = says.pop("LlamaForCausalLM")
    assert problem.startswith(
        "spec.model.reward: is LlamaForCausalLM, which has no trained head to score with; name"
    )
    assert not any(says.values())
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    further = f"spec.reward.models=[{{name: a, model: hub/a}}, {{name: b, model: {tmp_path}}}]"
    (problem,) = check_files(job(*given, further).spec)
    assert str(problem).startswith("spec.reward.models[1].model: is LlamaForCausalLM, which has no trained")


def test_layers_that_a_model_does_not_have_are_named(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    shapes = {
        "model.layers.0.q_proj.weight": [2, 2],
        "model.norm.weight": [2],
        "model.layers.0.up_proj.weight": [4, 2],
    }
    entries = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()
    }
    header = json.dumps(entries).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").touch()
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n')
    places = (
        f"spec.model.policy={model}",
        f"spec.data.train=[{tmp_path / 'p.jsonl'}]",
        "spec.reward.functions=[]",
    )
    lora = "spec.model.lora={policy: {targetModules: [q_proj, layers.0.up_proj, w_proj, norm, proj]}}"
    says = [str(p) for p in check_files(job(*places, "spec.model.reward=a/b", lora).spec)]
    assert says == [
        f"spec.model.lora.policy.targetModules[{i}]: no layer of '{model}' is named so; it has q_proj, up_proj; "
        f"got {name!r}"
        for i, name in ((2, "w_proj"), (3, "norm"), (4, "proj"))
    ]
    frozen = "spec.model.freeze=[norm, 'layers.[0-3]', layers.*.up_proj, lm_head, layers.1, proj]"
    says = [str(p) for p in check_files(job(*places, "spec.model.reward=a/b", frozen).spec)]
    assert says == [
        f"spec.model.freeze[{i}]: no parameter of '{model}' has this in its name; there are layers, model, norm, "
        f"q_proj, up_proj, weight; got {name!r}"
        for i, name in ((4, "layers.1"), (5, "proj"))
    ]


def test_layers_of_experts_are_named_as_transformers_fuses_them(tmp_path: Path) -> None:
    parts = [f"layers.0.mlp.experts.{i}.{part}_proj" for i in range(2) for part in ("gate", "up", "down")]
    entries = {
        f"{name}.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 0]}
        for name in (*parts, "layers.0.q_proj")
    }
    header = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert matrices(tmp_path) == [
        "layers.0.q_proj",
        "layers.0.mlp.experts.down_proj",
        "layers.0.mlp.experts.gate_up_proj",
    ]
    targets = "spec.model.lora={policy: {targetModules: [down_proj, experts.down_proj]}}"
    (problem,) = layer_problems(job(f"spec.model.policy={tmp_path}", targets).spec)
    assert "it has experts.down_proj, experts.gate_up_proj, q_proj; got 'down_proj'" in str(problem)


def test_fields_that_act_on_a_cluster_alone_are_said() -> None:
    assert not of_a_cluster(job("spec.pods.gpu={count: 1}", "spec.env.A=b").spec)
    boxed = job("spec.environment={path: 'a:B'}", "spec.sandbox={pods: {image: i}}").spec
    assert of_a_cluster(boxed) == ["spec.sandbox"]
    assert Role.SANDBOX not in roles_of(on_one_machine(boxed))
    set_all = job(
        "spec.suspend=true",
        "spec.activeDeadlineSeconds=9",
        "spec.scheduling.gang=volcano",
        "spec.workspace.claim=disk",
        "spec.pods={image: mine, gpu: {count: 1}}",
        "spec.reward.pods.nodeSelector={zone: a}",
        "spec.generator.autoscale={maxReplicas: 2}",
    )
    assert sorted(of_a_cluster(set_all.spec)) == [
        "spec.activeDeadlineSeconds",
        "spec.generator.autoscale",
        "spec.pods",
        "spec.reward.pods",
        "spec.scheduling",
        "spec.suspend",
        "spec.workspace",
    ]


def test_conversations_need_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat.jsonl").write_text('{"prompt": [{"role": "user", "content": "x"}]}\n')
    Path("text.jsonl").write_text('{"prompt": "x"}\n')
    Path("tokenizer").mkdir()
    Path("tokenizer/tokenizer_config.json").write_text("{}")
    files = ("spec.data.train=[text.jsonl, chat.jsonl]", "spec.model.policy=a/b", "spec.reward.functions=[]")
    local = (*files, "spec.model.tokenizer=./tokenizer")
    refused = (
        "has conversations, and the tokenizer './tokenizer' has no chat template; give spec.data.chatTemplate"
    )
    assert [str(p) for p in check_files(job(*local).spec)] == [f"spec.data.train[1]: {refused}"]
    prompted = job(*local, "spec.data.train=[text.jsonl]", "spec.data.systemPrompt=Be kind.").spec
    assert [str(p) for p in check_files(prompted)] == [f"spec.data.train[0]: {refused}"]
    assert not check_files(job(*files).spec), "what the hub has shows when it is loaded"
    assert not check_files(job(*local, "spec.data.chatTemplate='{{ messages }}'").spec)
    Path("tokenizer/chat_template.jinja").touch()
    assert not check_files(job(*local).spec)


def test_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "apiVersion: rlhf.dev/v1alpha1\nkind: RLHFJob\nmetadata: {name: x}\n"
    Path("job.yaml").write_text(
        text + "spec: {algorithm: sft, steps: 3, model: {policy: a/b}, data: {train: [d.jsonl]}}\n"
    )
    assert main(["validate", "job.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == "error: spec.data.train[0]: d.jsonl: cannot be read: No such file or directory\n"
    )
    assert main(["validate", "job.yaml", "--set", "spec.evaluation.everySteps=1"]) == 2
    assert "spec.evaluation: needs exactly one of data (files) and sets" in capsys.readouterr().err
    assert main(["validate", "job.yaml", "--no-files", "--set", "spec.trainer.replicas=2"]) == 0
    assert capsys.readouterr().out == "job.yaml is valid: x, sft, 3 steps on trainer x 2\n"
    secret = ["--set", "environment.HF_TOKEN=s3cr3t", "--set", "environment.URL=https://me:s3cr3t@h"]
    assert main(["validate", "job.yaml", "--no-files", *secret]) == 0
    warned = capsys.readouterr().out
    assert re.findall(r"warning: (\S+) looks like a secret", warned) == [
        "spec.env.HF_TOKEN",
        "spec.env.URL",
    ]
    assert "s3cr3t" not in warned
    config = RunConfig(job="x", spec=load(Path("job.yaml"), secret[1::2]).spec, workdir=str(tmp_path))
    workdir.write_config(tmp_path, config)
    assert "s3cr3t" not in (tmp_path / workdir.CONFIG).read_text()
    assert main(["validate", "job.yaml", "--no-files", "--set", "spec.seeds=1", "--set", "spec.steps=0"]) == 2
    assert [line.split(": ")[:2] for line in capsys.readouterr().err.splitlines()] == [
        ["error", "spec.steps"],
        ["error", "spec.seeds"],
    ]


HALF_ENDED = """
import ctypes, subprocess, threading, time
child = subprocess.Popen(["sleep", "600"])
threading.Thread(target=lambda: time.sleep(600)).start()
print(child.pid, flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_the_children_of_a_process_whose_first_thread_has_ended_are_found() -> None:
    """A torchrun agent that is killed looks like that for a moment; a rank of it that was missed trained on."""
    with subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            deadline = time.monotonic() + 120
            while Path(f"/proc/{parent.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert child in reaper.descendants(os.getpid())
            assert parent.pid not in reaper.descendants(os.getpid())
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


NESTED = """
import os, sys, time
for depth in range(12):
    if os.fork():
        break
else:
    depth = 12
os.write(1, f"{depth} {os.getpid()}\\n".encode())
time.sleep(600)
"""


def test_parents_are_killed_before_their_children_and_say_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shell that outlived its command wrote `Killed` below the last words of the role, which was then the cause."""
    killed, kill = list[int](), os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: (killed.append(pid), kill(pid, number))[1])
    with subprocess.Popen([sys.executable, "-c", NESTED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        chain = dict(sorted([int(word) for word in parent.stdout.readline().split()] for _ in range(13)))
        reaper.kill(pid for pid in reaper.descendants(os.getpid()) if pid in chain.values())
    assert killed == [*chain.values()]


def test_what_the_kernel_does_not_end_is_named_and_nothing_starts_beside_it(tmp_path: Path) -> None:
    script = Path(__file__).with_name("stuck.py")
    spec = job().spec.model_dump_json(by_alias=True, exclude_unset=True)
    done = subprocess.run(
        [sys.executable, script, tmp_path, spec], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (left,) = report["left"]
    assert (report["ended"], report["at first"], report["alive"]) == (0, "", [])
    assert report["late"].startswith(
        f"processes of reward-0 have not ended 0 s after SIGKILL (pids: {left}); "
    )
    assert report["reason"].startswith("lost its supervising process, which was ended by SIGKILL; see ")


def test_of_the_current_directory_only_what_a_manifest_names_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of somebody's data, with files that have the names of modules that Python and libraries import."""
    here = tmp_path / "a:b"
    here.mkdir()
    for name in ("sitecustomize", "usercustomize", "argparse", "psutil", "pydantic", "torch", "aiohttp"):
        (here / f"{name}.py").write_text("import os\nprint('ran')\nos._exit(7)\n")
    (here / "module_of_mine.py").write_text("def found():\n    print('found', __file__)\n")
    monkeypatch.chdir(here)
    config = RunConfig(job="a", spec=job().spec, workdir=str(tmp_path))
    process = Supervised(place(config, None)[0], tmp_path)
    own = "from rlhf_trainer.process.imports import import_function; import_function('module_of_mine:found', '')()"

    def role(*contract: Any) -> list[str]:
        python, safe, *_ = command(*contract)
        return [python, safe, "-c", f"import argparse, psutil, pydantic, torch, aiohttp; {own}"]

    process.start(config, tmp_path / "run.json", "", role)
    assert process.reaper is not None
    assert process.reaper.wait(120) == 0, process.log.tail()
    assert f"found {here}" in process.log.path.read_text()


def test_a_full_disk_is_told_with_what_is_free_on_each(tmp_path: Path) -> None:
    role = tmp_path / "role.py"
    role.write_text("raise OSError(28, 'No space left on device')\n")
    config = RunConfig(job="a", spec=job().spec, workdir=str(tmp_path))
    process = Supervised(place(config, None)[0], tmp_path)
    process.start(config, tmp_path / "run.json", "", lambda *_: [sys.executable, str(role)])
    assert process.reaper is not None
    assert process.reaper.wait(120) == 1
    process.note_end(0.0)
    assert process.ended is not None
    match = re.match(
        r"exited with code 1: OSError: \[Errno 28\] No space left on device \(free: (.*)\); see .*trainer-0.log$",
        process.ended.reason,
    )
    assert match is not None, process.ended.reason
    places = dict(reversed(words.split(" GB in ")) for words in match[1].split(", "))
    assert {str(tmp_path), "/dev/shm"} <= places.keys()
    assert [float(free) for free in places.values()] == sorted(map(float, places.values()))
    assert float(places[str(tmp_path)]) == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, rel=0.5)


def test_the_configuration_of_a_run_is_on_disk_before_its_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def sync(opened: int) -> None:
        path = Path(f"/proc/self/fd/{opened}").readlink()
        synced.append((path.name, path.is_file() and path.read_text() != ""))

    monkeypatch.setattr(os, "fsync", sync)
    workdir.write_config(tmp_path, RunConfig(job="a", spec=job().spec, workdir=str(tmp_path)))
    folder = (tmp_path.name, False)
    assert synced == [(".run.json.new", True), folder, ("run.json", True), folder]


def test_a_launcher_that_stood_still_blames_nobody_for_it(tmp_path: Path) -> None:
    """After Ctrl-Z, or on a scheduler that suspends all processes of a job."""
    config = RunConfig(job="a", spec=job().spec, workdir=str(tmp_path))
    out = io.StringIO()
    host = Host(config, Lines(out, 1), place(config, None))
    now = time.monotonic()
    host.processes[0].started, host.processes[1].started = now - 100.0, now
    host.trainer.progressed = now - 50.0
    host._move_deadlines(now + 1.0)
    late = now + 1.0 + config.spec.trainer.progress_deadline_seconds
    assert [type(action) for action in host._decide(late)] == [Kill]
    host._move_deadlines(late)
    assert Kill not in [type(action) for action in host._decide(late)]
    assert out.getvalue().endswith(" this process was paused for 900 s\n")


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "oom 9\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill 3\n"}, 3),  # in a container
        ({"proc/self/cgroup": "4:memory:/x\n0::/\n", "proc/vmstat": "pgfault 1\noom_kill 4\n"}, 4),
        ({}, 0),
    ],
)
def test_out_of_memory_kills_are_read_where_the_kernel_counts_them(
    tmp_path: Path, files: dict[str, str], count: int
) -> None:
    """The whole machine's count may be of others' processes: it is reported as a guess, and gives no failure type."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kills, own = OomKills(tmp_path), "proc/vmstat" not in files
    assert (oom.count(tmp_path), kills.words()) == ((count, own) if files else None, "")
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace(f"oom_kill {count}", "oom_kill 7"))
    words = f" for lack of memory (the kernel's count of out-of-memory kills rose by {7 - count})"
    if not own:
        words = " maybe" + words.replace("kernel", "machine")
    assert kills.words() == (words if files else "")
    assert failure_type(f"was ended by SIGKILL{kills.words()}") == (
        "HostOutOfMemory" if files and own else ""
    )


def test_what_is_of_no_run_is_not_replaced_by_one(tmp_path: Path) -> None:
    """As a policy of the user's beside the manifest, which the job even trains from."""
    (tmp_path / "policy").mkdir()
    spec = job(f"spec.model.policy={tmp_path / 'policy'}").spec
    config = RunConfig(job="job", spec=spec, workdir=str(tmp_path))
    for overwrite in (False, True):
        with pytest.raises(InvalidJob, match=r"holds policy, which is of no run.*give another --workdir"):
            workdir.prepare(tmp_path, config, resume=False, overwrite=overwrite)
    assert (tmp_path / "policy").exists()

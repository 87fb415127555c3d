"""Rewards of exit codes: what a program in the sandbox can reach and use, and what is a failure instead of a zero."""

import asyncio
import json
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from rlhf_api.manifest import load
from rlhf_api.problems import InvalidJob
from rlhf_trainer.scoring import program as module
from rlhf_trainer.scoring.program import Program
from rlhf_trainer.scoring.samples import Failure, Sample, score_all

ROOT = Path(__file__).parents[2]
WHERE = "spec.reward.functions[0].program"
PYTHON = ("python3", "-")
"""Runs the response as a program in Python: whatever python3 the system has."""


def sandbox() -> str:
    """Why there is none on this machine; empty where there is."""
    probe = Program(WHERE, ["true"], memory_megabytes=512, cpu_seconds=5, concurrency=1, timeout=30)
    try:
        asyncio.run(probe.start())
    except InvalidJob as error:
        return str(error)
    return ""


NONE = sandbox()
pytestmark = pytest.mark.skipif(bool(NONE), reason=NONE)


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """The job's directory: one that programs of any user can read, which pytest's are not while others run."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.chdir(name)
        yield Path(name)


def run(*responses: str, command=PYTHON, memory=512, cpu=5, timeout=60.0, row=None):
    async def work():
        program = Program(
            WHERE, command, memory_megabytes=memory, cpu_seconds=cpu, concurrency=2, timeout=timeout
        )
        await program.start()
        samples = [Sample("", response, row or {}) for response in responses]
        return await score_all(program, samples, retries=0, seconds=120.0)

    return asyncio.run(work())


def test_exit_code_0_is_1_and_any_other_is_0():
    assert run("exit(0)", "exit(3)", "raise ValueError", "not python at all !") == [1.0, 0.0, 0.0, 0.0]


def test_the_row_and_the_jobs_own_program_are_there(job):
    (job / "grade.py").write_text(
        "import json, sys\nsys.exit(sys.stdin.read().strip() != json.load(open('row.json'))['answer'])\n"
    )
    (job / "grade.py").chmod(0o644)
    assert run(" 5\n", "6", command=("python3", "/job/grade.py"), row={"answer": "5"}) == [1.0, 0.0]


def test_it_sees_no_environment_no_processes_and_an_empty_directory(monkeypatch):
    monkeypatch.setenv("RLHF_TOKEN", "secret")
    check = """
import os
assert sorted(os.environ) == ["HOME", "LC_CTYPE", "PATH", "PWD"], sorted(os.environ)
assert os.listdir(".") == ["row.json"]
assert not os.path.exists("/proc/1") and not os.path.exists("/root") and not os.path.exists("/home")
assert os.getuid() != 0 and os.getppid() == 1
"""
    assert run(check) == [1.0]


def test_it_cannot_write_but_in_its_own_directory_which_is_bounded(job):
    write = "open({!r}, 'wb').write(b'0')"
    places = ("/job/x", "/usr/x", "/etc/x", "/x", "/dev/x", "/dev/shm/x", "row.json")
    assert run(*(write.format(place) for place in places), write.format("mine")) == [0.0] * 7 + [1.0]
    assert list(job.iterdir()) == []
    assert run("open('large', 'wb').write(b'0' * (17 << 20))") == [0.0], "one file"
    many = "for i in range(5): open(str(i), 'wb').write(b'0' * (15 << 20))"
    assert run(many) == [0.0], "all files"


def test_it_has_no_network():
    """It cannot connect to a server on this machine either."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        assert subprocess.run([*PYTHON], input=connect.encode(), check=False).returncode == 0
        assert run(connect) == [0.0]


def test_its_limits_are_the_kernels():
    assert run("x = bytearray(1 << 30)") == [0.0], "memory"
    assert run("x = bytearray(1 << 30)", memory=2048) == [1.0]
    assert run("while True: pass", cpu=1) == [0.0], "CPU time"
    assert run("import os\nwhile True: os.fork()") == [0.0], "processes"
    assert run("files = [open('row.json') for _ in range(1000)]") == [0.0], "open files"


def test_what_waits_for_ever_is_a_failure_and_is_ended_with_all_that_it_started():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    sleeps = "import os, time\nos.fork()\nos.setsid()\ntime.sleep(3600)"
    assert run(sleeps, timeout=3.0) == [Failure("the program ran longer than 3 s")]
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    psutil.wait_procs(left, timeout=120)
    assert [child for child in left if child.is_running()] == []


def test_it_cannot_forge_its_exit_code():
    forge = """
import os
for fd in range(3, 256):
    try:
        os.write(fd, b'{"exit-code": 0}\\n')
    except OSError:
        pass
exit(1)
"""
    assert run(forge) == [0.0]


def test_an_end_by_sigkill_may_be_the_machines_lack_of_memory():
    (failure,) = run("import os; os.kill(os.getpid(), 9)")
    assert failure == Failure("the program was ended by SIGKILL, maybe for lack of memory")


def test_a_program_that_is_not_there_is_said_at_the_start():
    with pytest.raises(
        InvalidJob, match=r"'no-such' is not a program in the sandbox, where .* is /job"
    ) as caught:
        run("", command=("no-such",))
    assert caught.value.problems[0].where == WHERE


def test_without_a_sandbox_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidJob, match="needs a sandbox, and its tools are missing: install bwrap"):
        run("exit(0)")
    monkeypatch.undo()
    monkeypatch.setattr(module, "SYSTEM", ())  # nothing that a command could be run with
    with pytest.raises(InvalidJob, match=r"none can be made here: the sandbox ended with exit code 1: bwrap"):
        run("exit(0)")


def test_the_example_is_valid_and_its_grader_grades(monkeypatch):
    folder = ROOT / "examples" / "rewards"
    (function,) = load(folder / "program.yaml").spec.reward.functions
    assert function.metric == "passes"
    monkeypatch.chdir(ROOT)
    row = json.loads((folder / "problems.jsonl").read_text().splitlines()[0])
    right, wrong = "    return a + b\n", "    return a - b\n"
    endless = "    while True: pass\n"
    found = run(right, wrong, endless, command=function.program.command, cpu=2, row=row)
    assert found == [1.0, 0.0, 0.0]


IN_A_POD = """
import asyncio, ctypes, json, os, struct, sys
from rlhf_api.problems import InvalidJob
from rlhf_trainer.scoring.program import Program
from rlhf_trainer.scoring.samples import Sample, score_all

libc, filtered = ctypes.CDLL(None, use_errno=True), json.loads(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65532), os.setuid(65532)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
if filtered:  # what seccomp's default profile of container runtimes denies to a process without capabilities
    load, equal, some, end = 0x20, 0x15, 0x45, 0x06
    denied, unknown, allowed = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000
    lines = [(load, 0, 0, 0), (equal, 7, 0, 272), (equal, 6, 0, 165), (equal, 5, 0, 155), (equal, 3, 0, 435)]
    lines += [(equal, 0, 4, 56), (load, 0, 0, 16), (some, 1, 2, 0x7E020000)]
    lines += [(end, 0, 0, unknown), (end, 0, 0, denied), (end, 0, 0, allowed), (end, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HL", len(lines), ctypes.addressof(code)))
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()

async def work():
    made = Program("where", ["python3", "-"], memory_megabytes=512, cpu_seconds=5, concurrency=1, timeout=60)
    await made.start()
    return await score_all(made, [Sample("", text, {}) for text in sys.argv[2:]], retries=0, seconds=120)

try:
    print(json.dumps(asyncio.run(work())))
except InvalidJob as error:
    print(json.dumps(str(error)))
"""
"""A process as a pod of the `restricted` standard runs it: a user without capabilities and new privileges."""


def in_a_pod(*responses: str, default_seccomp: bool):
    command = [sys.executable, "-c", IN_A_POD, json.dumps(default_seccomp), *responses]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86's numbers of system calls")
def test_in_a_pod_with_the_default_seccomp_profile_the_job_is_refused_and_told_what_to_set():
    said = in_a_pod("exit(0)", default_seccomp=True)
    assert said.startswith(
        "where: needs a sandbox, and none can be made here: the sandbox ended with exit code 1"
    )
    assert "spec.reward.pods.template with a seccompProfile that lets it unshare (docs/rewards.md)" in said


def test_in_a_pod_that_may_unshare_the_limits_hold_without_any_privilege():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        spend = ("x = bytearray(1 << 30)", "import os\nwhile True: os.fork()", "open('/etc/x', 'w')", connect)
        assert in_a_pod("exit(0)", *spend, default_seccomp=False) == [1.0, 0.0, 0.0, 0.0, 0.0]

"""Rewards of exit codes: what a program in the sandbox can reach and use, what scores and what has no score."""

import asyncio
import itertools
import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import load
from rlhf_trainer.process import sandbox as sandbox_module
from rlhf_trainer.process import syscall_filter
from rlhf_trainer.process.timeouts import IN_A_ROW, Timeouts
from rlhf_trainer.process.usage import Usage, spent, usage
from rlhf_trainer.scoring import program as module
from rlhf_trainer.scoring.call_queue import CallQueue
from rlhf_trainer.scoring.program import Program
from rlhf_trainer.scoring.samples import Failure, Sample

ROOT = Path(__file__).parents[4]
WHERE = "spec.reward.functions[0].program"
PYTHON = ("python3", "-")
"""Runs the response as a program in Python: whatever python3 the system has."""


def sandbox() -> str:
    """The reason for which there is none on this machine; empty where there is."""
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


def made(command=PYTHON, candidate=None, memory=512, cpu=5, timeout=60.0, concurrency=2, failure_score=0.0):
    return Program(
        *(WHERE, command, candidate),
        memory_megabytes=memory,
        cpu_seconds=cpu,
        concurrency=concurrency,
        timeout=timeout,
        failure_score=failure_score,
    )


def run(*responses: str, row=None, **settings):
    async def work():
        program = made(**settings)
        await program.start()
        samples = [Sample("", response, row or {}) for response in responses]
        return (await CallQueue(program, retries=0, seconds=120.0).score(samples))[0]

    return asyncio.run(work())


def test_exit_code_0_is_1_and_any_other_is_0():
    assert run("exit(0)", "exit(3)", "raise ValueError", "not python at all !") == [1.0, 0.0, 0.0, 0.0]


def test_the_row_and_the_jobs_own_program_are_there(job):
    (job / "grade.py").write_text(
        "import json, sys\n"
        "row = json.load(open('row.json'), parse_constant=sys.exit)\n"  # NaN is not JSON
        "sys.exit(sys.stdin.read().strip() != row['answer'])\n"
    )
    (job / "grade.py").chmod(0o644)
    row = {"answer": "5", "weight": math.nan}
    assert run(" 5\n", "6", command=("python3", "/job/grade.py"), row=row) == [1.0, 0.0]


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


def test_files_that_travel_with_the_job_are_seen_by_the_program_alone(monkeypatch):
    """On a cluster they are mounted below /etc, which candidates see, beside the run's configuration."""
    if not os.access("/etc", os.W_OK):
        pytest.skip("/etc cannot be written")
    with tempfile.TemporaryDirectory(dir="/etc") as folder:
        config, files = Path(folder, "start.json"), Path(folder, "files")
        files.mkdir()
        for file in (config, files / "answers"):
            file.write_text("5")
        Path(folder).chmod(0o755)
        monkeypatch.setenv("RLHF_RUN_CONFIG", str(config))
        monkeypatch.setenv("RLHF_FILES", str(files))
        listing = f"import os; print([p for p in {[str(config), str(files), '/files']} if os.path.exists(p)])"
        check = "exit(input() != '[]' or open('/files/answers').read() != '5')"
        assert run("", command=("python3", "-c", check), candidate=("python3", "-c", listing)) == [1.0]


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


MACHINE = list(syscall_filter.MACHINES).index(platform.machine())


@pytest.mark.parametrize(
    "call",
    [
        "memfd_create(b'a', 0)",
        "shmget(0, 1 << 20, 0o1600)",
        "unshare(0x10000000)",
        f"syscall({syscall_filter.CLONE[MACHINE]}, 0x10000000 | 17, 0, 0, 0, 0)",
        "ptrace(16, 1, 0, 0)",
        "process_vm_readv(1, 0, 0, 0, 0, 0)",
        "setpriority(0, 0, 19)",
        "sched_setaffinity(0, 8, bytes([1] + [0] * 7))",
    ],
)
def test_it_makes_no_memory_that_no_limit_counts_nor_namespaces_and_looks_into_no_other(call):
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nassert libc.{call} == -1\n"
    assert run(f"{code}assert ctypes.get_errno() == 38, 'ENOSYS'") == [1.0]


def test_threads_and_processes_of_its_own_work():
    work = """
import multiprocessing, subprocess, threading
process = multiprocessing.Process(target=print)
process.start()
process.join()
assert process.exitcode == 0
thread = threading.Thread(target=print)
thread.start()
thread.join()
subprocess.run(["true"], check=True)
"""
    assert run(work) == [1.0]


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_the_numbers_of_system_calls_are_those_of_the_kernels_headers(machine, header):
    file = Path("/usr/include", header)
    if not file.exists():
        pytest.skip(f"no {file}")
    numbers = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", file.read_text()))
    column = list(syscall_filter.MACHINES).index(machine)
    known = {name: of_machines[column] for name, of_machines in syscall_filter.DENIED.items()}
    assert known == {name: int(numbers[name]) for name in known}
    assert syscall_filter.CLONE[column] == int(numbers["clone"])


RESPONSES_DOING = {
    "exits as after SIGKILL": "exit(137)",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "ignores SIGXCPU": "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "sleeps": "import time; time.sleep(3600)",
    "stops": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "sleeps without its parent": "import os, time\nif os.fork(): os._exit(1)\ntime.sleep(3600)",
    "kills all": "import os; os.kill(-1, 9)",
    "aborts": "import os; os.abort()",
    "memory": "x = bytearray(1 << 30)",
    "processes": "import os\nwhile True: os.fork()",
    "disk": "for i in range(5): open(str(i), 'wb').write(b'0' * (15 << 20))",
    "one file": "open('large', 'wb').write(b'0' * (17 << 20))",
}


def test_whatever_the_response_did_is_a_score():
    """One program after the other, so that each ends or sleeps while no other does."""
    scores = run("exit(0)", *RESPONSES_DOING.values(), cpu=1, timeout=15.0, concurrency=1, failure_score=-0.5)
    assert scores[0] == 1.0
    assert dict(zip(RESPONSES_DOING, scores[1:], strict=True)) == dict.fromkeys(RESPONSES_DOING, -0.5)


def test_a_timeout_of_every_response_is_no_score_and_ends_all_that_was_started():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    sleeps = "import os, time\nos.fork()\nos.setsid()\ntime.sleep(3600)"
    assert run(sleeps, timeout=3.0) == [
        Failure("the program ran longer than 3 s, and no other ended in time")
    ]
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    psutil.wait_procs(left, timeout=120)
    assert [child for child in left if child.is_running()] == []


def test_what_sleeps_takes_no_place_of_what_runs():
    async def work():
        program = made(concurrency=1, timeout=3600.0)
        await program.start()
        sleeping = [Sample("", "import time; time.sleep(3600)", {})] * 3
        sleepers = [asyncio.ensure_future(program.score([sample])) for sample in sleeping]
        await asyncio.sleep(0)  # they are first in line
        scores = await program.score([Sample("", "exit(0)", {})])
        assert not any(sleeper.done() for sleeper in sleepers)
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        return scores

    assert asyncio.run(work()) == [1.0]


def test_a_sandbox_that_is_killed_from_outside_is_no_score():
    async def work():
        program = made()
        await program.start()
        before = set(psutil.Process().children())
        scoring = asyncio.ensure_future(program.score([Sample("", "import time; time.sleep(3600)", {})]))
        while not (new := set(psutil.Process().children()) - before):
            await asyncio.sleep(0.01)
        new.pop().kill()
        return await scoring

    (failure,) = asyncio.run(work())
    assert isinstance(failure, Failure)
    assert failure.reason.startswith("the sandbox ended with exit code -9")


def test_a_kill_for_lack_of_memory_is_no_score_unless_the_program_succeeds(monkeypatch):
    kills = iter(range(100))
    monkeypatch.setattr(module, "out_of_memory_kills", lambda: next(kills))
    reason = "the kernel killed a process for lack of memory while the program ran"
    assert run("exit(1)", "exit(0)", concurrency=1) == [Failure(reason), 1.0]


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


def test_a_program_that_is_not_there_is_said_at_the_start():
    with pytest.raises(
        InvalidJob, match=r"'no-such' is not a program in the command's sandbox, where .* is /job"
    ) as caught:
        run("", command=("no-such",))
    assert caught.value.problems[0].where == WHERE


def test_without_a_sandbox_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidJob, match="needs a sandbox, and its tools are missing: install bwrap"):
        run("exit(0)")
    monkeypatch.undo()
    monkeypatch.setattr(sandbox_module, "SYSTEM", ())  # nothing that a command could be run with
    with pytest.raises(InvalidJob, match=r"none can be made here: the sandbox ended with exit code 1: bwrap"):
        run("exit(0)")


def graded(*responses: str, tests: str | None = None, **settings):
    """Scores of responses to the first problem of the example, by its grader."""
    folder = ROOT / "examples" / "rewards"
    (function,) = load(folder / "program.yaml").spec.reward.functions
    assert function.metric == "passes"
    program = function.program
    row = json.loads((folder / "problems.jsonl").read_text().splitlines()[0])
    row |= {} if tests is None else {"tests": tests}
    return run(*responses, command=program.command, candidate=program.candidate, row=row, **settings)


def test_the_example_is_valid_and_its_grader_grades(monkeypatch):
    monkeypatch.chdir(ROOT)
    right, prints = "    return a + b\n", "    print('5')\n    return a + b\n"
    wrong, endless, invalid = "    return a - b\n", "    while True: pass\n", "  return ) a\n"
    assert graded(right, prints, wrong, endless, invalid, cpu=2) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_the_docs_show_the_examples_grader():
    (shown,) = re.findall(
        r"```python\n(CANDIDATE = .*?)```", (ROOT / "docs" / "guides" / "rewards.md").read_text(), re.S
    )
    assert (ROOT / "examples" / "rewards" / "grade.py").read_text().endswith(shown)


DISHONEST = {
    "exit": "exit()",
    "quit": "quit(0)",
    "SystemExit": "raise SystemExit(0)",
    "os._exit": "import os; os._exit(0)",
    "in a thread": "import threading\ndef end(): raise SystemExit(0)\nthreading.Thread(target=end).start()",
    "os._exit in a thread": "import os, threading; threading.Thread(target=os._exit, args=(0,)).start()",
    "atexit": "import atexit, os; atexit.register(os._exit, 0)",
    "excepthook": "import os, sys; sys.excepthook = lambda *_: os._exit(0)",
    "fork": "import os\nif os.fork(): os._exit(0)",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "equal to all": "class Equal(int):\n __eq__ = lambda self, other: True\nadd = lambda a, b: Equal()",
    "verdict on every descriptor": """
import os
for fd in range(256):
    for verdict in (b"0\\n", b"true\\n", b'{"exit-code": 0}\\n'):
        try: os.write(fd, verdict)
        except OSError: pass
""",
    "reads row and dataset": """
import glob, json, os
from pathlib import Path
places = ["row.json", "response.txt", "/tmp/row.json", "/job/examples/rewards/problems.jsonl"]
for name in [*places, *glob.glob("/tmp/**", recursive=True), *glob.glob("/proc/*/*"), *glob.glob("/job/**")]:
    if Path(name).is_file() and "assert" in Path(name).read_text(errors="replace"):
        add = lambda a, b: a + b
""",
    "reads its memory": """
import gc, sys
frame = sys._getframe()
while frame:
    if "assert" in str({k: v for k, v in frame.f_globals.items() if k != "code"}) + str(frame.f_locals.get("row")):
        add = lambda a, b: a + b
    frame = frame.f_back
if any(isinstance(each, dict) and "tests" in each for each in gc.get_objects()):
    add = lambda a, b: a + b
""",
    "traces its parent": "import ctypes, os; ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0); os._exit(0)",
    "kills its parent": "import os; os.kill(os.getppid(), 9); os.kill(-1, 9)",
    "fills the disk": "try:\n while True: open(str(id(object())), 'ab').write(bytes(1 << 20))\nexcept OSError: exit(0)",
    "memory files": "import os\ntry:\n while True: os.memfd_create('m')\nexcept OSError: os._exit(0)",
    "namespaces": "import ctypes, os; ctypes.CDLL(None).unshare(0x10000000); os._exit(0)",
    "floods": "import os\nwhile True: os.write(1, b'[' * 65536)",
    "closes its pipes": "import os; os.close(0); os.close(1)",
    "deep reply": "add = lambda a, b: eval('[' * 80 + ']' * 80)",
}
"""What a wrong answer does besides."""


def test_no_dishonest_response_passes_the_examples_grader(monkeypatch):
    monkeypatch.chdir(ROOT)
    responses = [f"    return a - b\n{code}\n" for code in DISHONEST.values()]
    inside = "    import os\n    os._exit(0)\n"
    scores = graded("    return a + b\n", inside, *responses, timeout=20.0)
    assert scores[:2] == [1.0, 0.0]
    assert dict(zip(DISHONEST, scores[2:], strict=True)) == dict.fromkeys(DISHONEST, 0.0)


@pytest.mark.parametrize("parent", [None, "/opt"])
def test_the_candidate_sees_neither_the_job_nor_the_files_of_the_grader(parent, monkeypatch):
    """Not below a directory that it does see, either."""
    if parent is not None and not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} cannot be written")
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        monkeypatch.chdir(folder)
        Path(folder).chmod(0o755)
        secret = Path(folder, "secret")
        secret.touch(0o644)
        places = ["/job", str(secret)]
        listing = f"import os; print(os.listdir('.'), [each for each in {places} if os.path.exists(each)])"
        check = "import os; exit(not os.path.exists('/job/secret') or input() != '[] []')"
        assert run("", command=("python3", "-c", check), candidate=("python3", "-c", listing)) == [1.0]


def test_a_candidate_that_cannot_be_started_is_refused():
    with pytest.raises(InvalidJob, match=r"'no-such' is not a program in the candidate's sandbox"):
        run("", candidate=("no-such",))
    with pytest.raises(InvalidJob, match=r"'/job/x.py' is not .* where the job's directory is not visible"):
        run("", candidate=("/job/x.py",))


@pytest.mark.parametrize(
    ("used", "passed", "seconds"),
    [
        (Usage(0.1, 0.0), 30.0, 30.0),  # asleep
        (Usage(1.0, 29.0), 30.0, 1.0),  # computing, on a busy machine
        (Usage(60.0, 28.0), 30.0, 60.0),  # many processes that wait for each other
        (Usage(0.0, 0.0), 0.0, 0.0),
    ],
)
def test_waiting_for_a_cpu_is_no_time_spent(used, passed, seconds):
    assert spent(used, passed) == seconds


def test_a_program_that_only_waits_for_a_cpu_is_not_too_late(job, monkeypatch):
    """By its usage it has waited all the time; it ends after the third look, long after its timeout."""
    checks = itertools.count(1)

    def waited(_pids):
        if next(checks) == 3:
            (job / "go").touch()
        return Usage(0.0, math.inf)

    monkeypatch.setattr(module, "usage", waited)
    code = "import os, time\nwhile not os.path.exists('/job/go'): time.sleep(0.01)"
    assert run(code, timeout=0.1) == [1.0]
    assert next(checks) > 3


def test_usage_is_that_of_a_process_and_of_all_that_it_started():
    spin = "sum(range(10**7))"
    code = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{spin}']); {spin}; print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        measured, alone = usage([process.pid]), psutil.Process(process.pid).cpu_times()
        process.communicate(b"\n")
    assert measured.computed >= alone.user + alone.children_user > alone.user > 0
    assert usage([process.pid]) == Usage()


def test_a_process_waits_for_a_cpu_that_another_one_uses():
    """Two that never end, on one CPU."""
    cpu = min(os.sched_getaffinity(0))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"]
        )
        for _ in range(2)
    ]
    try:
        while not all(usage([process.pid]).waited > 0 for process in both):
            assert all(process.poll() is None for process in both)
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_a_timeout_is_the_responses_while_others_end_in_time():
    timeouts = Timeouts()
    assert not timeouts.is_of_response(time.monotonic()), "nothing has ended in time yet"
    began = time.monotonic()
    timeouts.record_end()
    assert all(timeouts.is_of_response(began) for _ in range(2 * IN_A_ROW)), "one ended meanwhile"
    later = [timeouts.is_of_response(time.monotonic() + 1) for _ in range(2 * IN_A_ROW)]
    assert later == [True] * IN_A_ROW + [False] * IN_A_ROW, "none ends any more"
    timeouts.record_end()
    assert timeouts.is_of_response(time.monotonic() + 1)


IN_A_POD = """
import asyncio, ctypes, json, os, struct, sys
from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.scoring.program import Program
from rlhf_trainer.scoring.call_queue import CallQueue
from rlhf_trainer.scoring.samples import Sample

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
    samples = [Sample("", text, {}) for text in sys.argv[2:]]
    return (await CallQueue(made, retries=0, seconds=120).score(samples))[0]

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
    message = in_a_pod("exit(0)", default_seccomp=True)
    assert message.startswith(
        "where: needs a sandbox, and none can be made here: the sandbox ended with exit code 1"
    )
    assert (
        "spec.reward.pods.template with a seccompProfile that lets it unshare (docs/guides/rewards.md)"
        in message
    )


def test_in_a_pod_that_may_unshare_the_limits_hold_without_any_privilege():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        spend = ("x = bytearray(1 << 30)", "import os\nwhile True: os.fork()", "open('/etc/x', 'w')", connect)
        assert in_a_pod("exit(0)", *spend, default_seccomp=False) == [1.0, 0.0, 0.0, 0.0, 0.0]

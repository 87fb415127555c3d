"""Small stand-ins for the roles: what they do is told by FAKE_<ROLE>, a list of words, one for each start; of the
further processes of a generator, which have no HTTP, by FAKE_FOLLOWER.

They speak the contract's HTTP and leave a grandchild in a session of its own, as the real roles do. Like a port or a
GPU, a lock of each is held for as long as anything of one start is left; the next start ends where it is.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlhf_api.contract.proof import PROOF, Prover

prover = Prover(os.environ["RLHF_TOKEN"], os.environ["RLHF_HOST"], int(os.environ["RLHF_PORT"]))
role, index, rank = sys.argv[1], os.environ["RLHF_INDEX"], int(os.environ.get("RLHF_RANK", "0"))
name = os.environ["RLHF_NAME"]
config = json.loads(Path(os.environ["RLHF_RUN_CONFIG"]).read_text())
workdir = Path(config["workdir"])
starts = workdir / f"{name}.starts"
starts.open("a").write("x\n")
tempfile.mkstemp(prefix=f"{name}-")  # nobody removes it
plan = os.environ.get("FAKE_FOLLOWER" if rank else f"FAKE_{role.upper()}", "serve").split()
number = len(starts.read_text().splitlines())
word = plan[min(number, len(plan)) - 1]
total = config["spec"]["steps"]
state = {"activity": "starting", "totalSteps": total, "step": 0}
members: list[dict] = []
reported: set[tuple[str, str]] = set()
"""The name and uid of every member there ever was."""
stop, save_requested, asked_to_stop = threading.Event(), threading.Event(), threading.Event()


class Handler(BaseHTTPRequestHandler):
    def answer(self, body: object, code: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self) -> bool:
        good = prover.admits(self.headers.get("Authorization", "").encode())
        if not good:
            self.answer({}, 401)
        return good

    def do_GET(self) -> None:
        if self.path in ("/health", "/live"):
            self.answer({})
        elif self.path.startswith(PROOF):
            self.answer(json.loads(prover.answer(self.path.rpartition("=")[2])))
        elif self.allowed():
            self.answer(state)
            save_requested.set()

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.allowed():
            members[:] = body["members"]
            reported.update((member["name"], member["uid"]) for member in members)
            with (workdir / "members.jsonl").open("a") as out:
                out.write(json.dumps([number, body]) + "\n")
            self.answer({})

    def do_POST(self) -> None:
        if not self.allowed():
            return
        if word == "busy" and not asked_to_stop.is_set():
            asked_to_stop.set()
            self.close_connection = True  # no answer, this once
            return
        stop.set()
        self.answer({})

    def log_message(self, *_: object) -> None:
        pass


def leave(code: int, message: str) -> None:
    Path(os.environ["RLHF_TERMINATION_LOG"]).write_text(message)
    os._exit(code)


def checkpoint(step: int) -> None:
    (workdir / "saved").write_text(str(step))
    state["lastCheckpoint"] = {"step": step, "time": "2026-01-01T00:00:00Z", "uri": "file:///x"}


def show() -> None:
    """Until the host has read the state as it is now.

    The first answer may have left before, the second has it, and who asks once more has read that.
    """
    for _ in range(3):
        save_requested.clear()
        save_requested.wait()


def has_renewed() -> bool:
    """True if every process of every generator has started twice, and each generator was reported under two uids."""
    generators = [path.read_text() for path in workdir.glob("generator-*.starts")]
    uids = [name for name, _ in reported if name.startswith("generator-")]
    return all(len(text.splitlines()) >= 2 for text in generators) and all(
        uids.count(name) >= 2 for name in {"generator-0", *uids}
    )


def train() -> None:
    while word == "idle":
        time.sleep(1)
    if index != "0":
        time.sleep(1)
        os._exit(0)
    expected = config["spec"]["generator"]["replicas"] + 2 if config["spec"]["algorithm"] == "ppo" else 0
    while (len(members) < expected or (word == "renewed" and not has_renewed())) and not stop.is_set():
        time.sleep(0.01)
    if word == "stuck":
        state["progressCount"] = 7
    saved = workdir / "saved"
    first = int(saved.read_text()) if config["resume"] and saved.exists() else 0
    for step in range(first + 1, total + 1):
        if stop.is_set():
            checkpoint(step - 1)
            os._exit(79)
        state.update(activity="training", step=step, secondsPerStep=0.1, rewardMean=step / 10, klMean=0.01)
        state.update(tokensPerSecond=100.0, weightVersion=step)
        ledger = {"epoch": 0, "issued": step, "returned": step, "trained": step - 1, "requeued": 0}
        state.update(ledger=ledger | {"dropped": int(word == "drops"), "lost": 0})
        line = {"step": step, "reward_mean": step / 10, "kl_mean": 0.01, "tokens": 10, "seconds": 0.1}
        with (workdir / "metrics.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        if step == total // 2:
            if word != "crash-unsaved":
                checkpoint(step)
            if word.startswith("crash"):
                show()
                print("Traceback (most recent call last):\n  ...\nValueError: loss is nan", flush=True)
                os._exit(1)
            if word == "told":
                stop.set()
            if word == "full":
                state["activity"] = "the checkpoint store fails, trying again: No space left on device"
                show()
                state["activity"] = "training"
            while word in ("hold", "busy") and not stop.is_set():
                time.sleep(0.01)
            if word in ("stuck", "stopped"):
                show()
                (workdir / "quiet").touch()
            if word == "stuck":  # goes on once it is told of, and hangs then
                while '"NoProgress"' not in (workdir / "status.json").read_text():
                    time.sleep(0.01)
                state["progressCount"] += 1
                show()
            if word in ("stuck", "stopped"):
                (workdir / "hung").touch()
            while word in ("deaf", "stuck"):
                time.sleep(1)
            if word == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.05)
    (workdir / "policy").mkdir(exist_ok=True)
    show()
    os._exit(0)


held = (workdir / f"{name}.held").open("w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    leave(3, f"{name} still runs from before")
signal.signal(signal.SIGTERM, signal.SIG_IGN if word == "stubborn" else signal.SIG_DFL)
# A grandchild in a session of its own that ignores SIGTERM, with a child that does, too.
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600; :"], start_new_session=True, pass_fds=[held.fileno()])
if word == "invalid":
    leave(78, "the model does not fit its tokenizer")
if word.startswith("exit"):
    print(f"last words of {role}", flush=True)
    sys.exit(int(word[4:]))
if word == "segfault":
    ctypes.string_at(0)  # where libraries end a process
if word == "flood":
    log = workdir / "logs" / f"{name}.log"
    while not log.with_name(f"{log.name}.3").exists():
        print("a line" * 20, flush=True)
        time.sleep(0.001)
    while log.stat().st_size > int(os.environ["RLHF_TEST_LOG_BYTES"]):
        time.sleep(0.001)  # what is written while a full log moves may be lost
    print("Traceback (most recent call last):\n  ...\nValueError: at the end of the flood", flush=True)
    sys.exit(3)
if word == "oom":
    Path(os.environ["FAKE_MEMORY_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    bytearray(1 << 30)
if word == "silent":
    time.sleep(600)
if role == "generator" and rank == 0 and config["spec"]["generator"]["podsPerReplica"] > 1:
    follower = workdir / f"{name}-1.starts"  # a real one, too, serves once all its processes are there
    while not follower.exists() or len(follower.read_text().splitlines()) < number:
        time.sleep(0.01)
if rank == 0:
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["RLHF_PORT"])), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
if role == "trainer":
    train()
if word == "die":
    pushed = workdir / "members.jsonl"
    processes = config["spec"][role].get("podsPerReplica", 1)
    while not (
        pushed.exists()
        and f'"{role}-{index}"' in pushed.read_text()
        and len([*workdir.glob(f"{role}-{index}*.starts")]) == processes
    ):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)

"""Whether namespaces can be made as in a pod: in a user namespace of its own, by a user without capabilities."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes the user namespace of a pod")
IN_A_POD = """
import asyncio, ctypes, json, os, sys
from pathlib import Path
from rlhf_trainer.process import private_processes

MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi")
libc, unmasked = ctypes.CDLL(None, use_errno=True), json.loads(sys.argv[1])


def call(name, *arguments):
    assert getattr(libc, name)(*arguments) == 0, (name, os.strerror(ctypes.get_errno()))


(unshared, ready), (mapped, go) = os.pipe(), os.pipe()
if not (container := os.fork()):
    call("unshare", 0x10000000 | 0x20000 | 0x20000000)  # users, mounts, processes
    os.write(ready, b"x")
    os.read(mapped, 1)
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    call("mount", b"none", b"/", None, 0x40000 | 0x4000, None)  # private, recursive
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    for place in () if unmasked else filter(os.path.exists, MASKED):
        kind = (b"tmpfs", b"tmpfs", 1) if os.path.isdir(place) else (b"/dev/null", None, 0x1000)
        call("mount", kind[0], place.encode(), kind[1], kind[2], None)
    os.setgroups([]), os.setgid(65532), os.setuid(65532)
    call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    print(json.dumps(asyncio.run(private_processes.why_impossible())), flush=True)
    os._exit(0)
os.read(unshared, 1)
for name in ("uid_map", "gid_map"):
    Path(f"/proc/{container}/{name}").write_text("0 100000 65536")
os.write(go, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(container, 0)[1]))
"""


@pytest.mark.parametrize(("unmasked", "reason"), [(True, ""), (False, "Can't mount proc")])
def test_a_pod_with_users_of_its_own_needs_an_unmasked_proc_besides(unmasked: bool, reason: str) -> None:
    command = [sys.executable, "-c", IN_A_POD, json.dumps(unmasked)]
    impossible = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout)
    assert reason in impossible
    assert bool(impossible) == bool(reason)

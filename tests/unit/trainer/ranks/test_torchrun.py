"""torchrun for one rank, and the interface on which ranks talk: that of the address that their host gave them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlhf_api.contract.run import EXIT_SUSPENDED
from rlhf_trainer.process.addresses import interface

OPTIONS = (
    "--nnodes 1 --nproc-per-node 1 --node-rank 0 --master-addr 127.0.0.1 --master-port 29500 --max-restarts 0"
)
TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANK = f"""
import json, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({EXIT_SUSPENDED}))
parent = open(f"/proc/{{os.getppid()}}/maps").read()
print(json.dumps({{**{{name: os.environ[name] for name in {TOLD}}}, "torch": "libtorch" in parent}}), flush=True)
exec(sys.stdin.read())
"""
SAFE = """
import json, os, psutil, sys
sockets = psutil.Process(os.getppid()).net_connections()
told = [bool(sys.flags.safe_path), [each.laddr.ip for each in sockets if each.status == "LISTEN"]]
print(json.dumps(told) + "\\n", end="", flush=True)
"""


@pytest.fixture
def alone(tmp_path: Path):
    """torchrun for a job's only rank, which says what it was told and then does what it is asked."""
    (tmp_path / "rank_of_this_test.py").write_text(RANK)
    with subprocess.Popen(
        [sys.executable, "-m", "rlhf_trainer.torchrun", *OPTIONS.split(), "-m", "rank_of_this_test"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def ends(process: subprocess.Popen, doing: str) -> int:
    process.communicate(doing, timeout=60)
    return process.returncode


def test_a_rank_that_is_alone_needs_no_torch_beside_it(alone):
    environment = json.loads(alone.stdout.readline())
    assert environment == dict(zip(TOLD, ("0", "0", "1", "1", "127.0.0.1", "29500"), strict=True)) | {
        "torch": False
    }
    assert ends(alone, "") == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_import_nothing_by_the_way_from_their_directory_and_meet_on_loopback(tmp_path, ranks):
    """A file there with a library's name would run in its place; torch's store would listen on all interfaces."""
    module, here = tmp_path / "modules", tmp_path / "here"
    module.mkdir(), here.mkdir()
    (module / "rank_of_this_test.py").write_text(SAFE)
    (here / "psutil.py").write_text("raise SystemExit('ran')")
    options = ["--nnodes", "1", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port"]
    done = subprocess.run(
        [*(sys.executable, "-P", "-m", "rlhf_trainer.torchrun"), *options, "0", "-m", "rank_of_this_test"],
        env=os.environ | {"PYTHONPATH": str(module)},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert reports == [[True, ["127.0.0.1"] if ranks > 1 else []]] * ranks


@pytest.mark.parametrize(
    ("doing", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL)]
)
def test_its_exit_code_is_the_rank_s(alone, doing, code):
    assert ends(alone, doing) == code


def test_a_rank_that_is_alone_hears_of_sigterm(alone):
    alone.stdout.readline()
    alone.terminate()
    assert alone.wait(60) == EXIT_SUSPENDED


def test_the_interface_of_an_address_is_found():
    interfaces = {
        each.address.split("%")[0]: name for name, own in psutil.net_if_addrs().items() for each in own
    }
    assert interface("127.0.0.1") == interfaces["127.0.0.1"]
    assert {interface(address) for address in interfaces if address} <= set(interfaces.values())
    assert interface("203.0.113.7") is None

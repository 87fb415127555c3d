"""`rlhf` as users run it, with the stand-in roles for the real ones."""

import os
import sys
from pathlib import Path

from rlhf_api.contract.run import Process, RunConfig
from rlhf_operator.cli import main
from rlhf_operator.local import host, run_process
from rlhf_operator.local.preflight import hub
from rlhf_operator.local.processes import log as process_log
from rlhf_operator.local.processes import process as processes
from rlhf_operator.local.processes import stopping
from rlhf_operator.page.serve import beside
from rlhf_operator.page.serve.static_files import Asset
from rlhf_operator.supervision import role_client

sys.path.append(str(Path(__file__).parents[4]))
from tests.support.clocks.haste import Haste
from tests.support.forked.becoming import STAND_INS
from tests.support.rlhf import ROOT


def fake(_config: RunConfig, process: Process, python: str) -> list[str]:
    return [python, "-P", "-m", "tests.unit.operator.local.roles", process.role.value]


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)  # for the roles
    role_client.LIVE_TIMEOUT_SECONDS = 1.5  # of each of LIVE_FAILURES probes in a row
    processes.LIVE_SECONDS = float(os.environ.get("RLHF_TEST_LIVE_SECONDS", "20"))
    if patience := os.environ.get("RLHF_TEST_STOP_SECONDS"):
        host.GRACE_SECONDS = stopping._STOP_SECONDS = float(patience)
    process_log.FULL = int(os.environ.get("RLHF_TEST_LOG_BYTES", process_log.FULL))
    if folder := os.environ.get("RLHF_TEST_SILENCE"):
        host.silence = Haste(Path(folder), 2)
    if os.environ.get("RLHF_TEST_PAGE"):  # as if it was built
        beside.find_assets = lambda: {"/": Asset(Path(__file__), "text/plain")}
    run_process.PROGRAM = STAND_INS
    hub.silence = lambda _endpoint: ""  # the roles load nothing
    sys.exit(main(make=fake))

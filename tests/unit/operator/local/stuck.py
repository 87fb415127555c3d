"""A launcher whose role's reaper is killed while what is left of the role can't end; prints what it says of that.

A process of its own, since it kills all that is below it. A process that waits for a disk or a driver ends on no
signal; here it is given none.
"""

import json
import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from rlhf_api.contract.run import Process, RunConfig
from rlhf_api.host import reaper
from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.local.processes import stopping
from rlhf_operator.local.processes.process import Supervised

ROLE = "import os, time; os.fork() or os.setsid(); time.sleep(600)"

folder = Path(sys.argv[1])
config = RunConfig(job="j", spec=Spec.model_validate_json(sys.argv[2]), workdir=str(folder))
reaper.become_subreaper()
process = Supervised(Process(Role.REWARD, 0, 1, "127.0.0.1", ""), folder)
tree = stopping.Tree([process])
process.start(config, folder / "run.json", "", lambda *_: [sys.executable, "-c", ROLE])
assert process.reaper is not None
while len(reaper.descendants(process.reaper.pid)) < 2:
    time.sleep(0.01)
with patch.object(reaper, "kill"):
    process.reaper.kill()
    process.reaper.wait()
    while len(left := reaper.descendants(os.getpid())) != 1:
        time.sleep(0.01)  # the role itself ends with its reaper, what it forked does not
    report = {"left": [*left], "ended": len(tree.newly_ended())}
    report["at first"] = tree.remaining()
    with patch.object(stopping, "REMAIN_SECONDS", 0.0):
        report["late"] = tree.remaining()
while not tree.newly_ended():
    time.sleep(0.01)
assert process.ended is not None
print(json.dumps(report | {"reason": process.ended.reason, "alive": [*reaper.descendants(os.getpid())]}))

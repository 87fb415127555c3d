"""`rlhf` from Python, with stand-in roles."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.sources.cells import run_cells

from rlhf import Failure, InvalidJob, Job, Run

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "python.md"


@pytest.fixture
def job(small_job: Path) -> Job:
    return Job.load(small_job)


def test_a_run_is_followed_to_its_end_and_read_afterwards(job, capsys):
    run = job.set({"optimizer.learningRate": 1e-4}, steps=4).run()
    assert [step["reward_mean"] for step in run] == [0.1, 0.2, 0.3, 0.4]
    assert run.wait().status.phase == "Succeeded"
    assert capsys.readouterr().out.endswith(
        "done: 4 of 4 steps\n  runs/job/policy\n  runs/job/metrics.jsonl\n"
    )
    assert run.policy() == Path("runs/job/policy")
    spec = json.loads(Path("runs/job/run.json").read_text())["spec"]
    assert (spec["steps"], spec["optimizer"]["learningRate"]) == (4, 1e-4)
    assert job.check().spec.steps == 9, "a job does not change"
    again = Run.open("runs/job")
    assert (again.steps(), again.wait().status, again.running) == (run.steps(), run.status, False)
    with pytest.raises(
        InvalidJob, match="runs/job: an earlier run is in it, Succeeded at step 4 of 4; add --resume"
    ):
        job.run()


def test_an_interrupt_stops_a_run_after_a_checkpoint_and_it_is_resumed(job, monkeypatch):
    monkeypatch.setenv("FAKE_TRAINER", "hold")
    run = job.run()

    def interrupt() -> None:
        while len(run.steps()) < 4:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert (run.running, run.status.phase, run.status.last_checkpoint.step) == (False, "Suspended", 4)
    monkeypatch.setenv("FAKE_TRAINER", "invalid")
    with pytest.raises(
        Failure, match=r"(?s)^trainer-0 exited with code 78: the model does .*the newest checkpoint is"
    ):
        list(job.run(resume=True))
    monkeypatch.setenv("FAKE_TRAINER", "serve")
    assert job.run(resume=True).wait(quiet=True).status.phase == "Succeeded"


def test_mistakes_are_those_of_the_command_line(job, monkeypatch):
    with pytest.raises(
        InvalidJob, match=r"spec.optimizer.learningRate: must be greater than or equal to 0; got -1"
    ):
        job.set({"optimizer.learningRate": -1}).run()
    with pytest.raises(TypeError, match="steps: no manifest can hold a value of type object"):
        job.set(steps=object())
    with pytest.raises(Failure, match="resume and overwrite exclude each other"):
        job.run(resume=True, overwrite=True)
    with pytest.raises(Failure, match="--accept-changes applies only to --resume"):
        job.run(accept_changes=True)
    assert not Path("runs").exists()
    with pytest.raises(ValueError, match="order must be one of newest, oldest, best, worst; got 'bes'"):
        Run(Path("nowhere")).samples(order="bes")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install pandas, or use steps\(\)"):
        Run(Path("nowhere")).metrics()


@pytest.mark.usefixtures("job")
def test_the_guide_does_what_it_says(monkeypatch):
    """Without a cluster, Optuna and pandas, of which the guide needs no more than this."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), flags=re.S | re.M)
    for block in blocks:
        compile(block, str(GUIDE), "exec")
    first, reading, reward = [block for block in blocks if "submit(" not in block and "optuna" not in block]
    assert run_cells([first])["run"].wait().status.step == 20
    sample = {
        "step": 1,
        "prompt_id": "0/0",
        "prompt": "hi",
        "response": "x",
        "weight_version": 1,
        "score": 1.0,
    }
    Path("runs/job/samples.jsonl").write_text(json.dumps(sample | {"prompt_length": 1, "response_length": 1}))
    names = run_cells([reading, "from rlhf import Job\n" + reward])
    assert (len(names["frame"]), names["worst"][0].response, names["model"].is_dir()) == (20, "x", True)
    assert f"rlhf_functions.{names['short'].__name__}_" in str(names["job"])

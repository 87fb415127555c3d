"""A rank that hangs: `rlhf run` notices that its trainer gets nothing done, and the job goes on from its checkpoint."""

import json
import re
from pathlib import Path

import pytest
from tests.faults.chaos.conftest import Store, spec
from tests.support.rlhf import finish, start
from tests.support.tiny.models import tiny_model

pytestmark = pytest.mark.slow
STEPS = 6  # two epochs


def test_ranks_that_are_stopped_are_noticed_and_nothing_is_lost(tmp_path: Path):
    """Rank 1 while models are loaded, for which rank 0 waits and answers on; rank 0, which answers nobody;
    rank 1 in a step."""
    url = f"file://{tmp_path}/store"
    job = spec(tmp_path, tiny_model(tmp_path / "policy", tie=False, seed=1))
    job |= {"steps": STEPS, "checkpoint": {"everySteps": 1, "store": url}}
    job["trainer"] = {"processesPerReplica": 2, "progressDeadlineSeconds": 600}
    manifest = tmp_path / "job.yaml"
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "hangs"}}
    manifest.write_text(json.dumps({**head, "spec": job}))

    hung = {"module": "tests.support.clocks.haste", "RLHF_FAULTS": "tests.support.faults:stop_each_rank"}
    finished = finish(start(manifest, tmp_path / "run", **hung), tmp_path / "run")

    assert finished.code == 0, finished.output[-4000:]
    pattern = (
        r"trainer-0 made no progress for 600 s, last seen (.+) \(spec.trainer.progressDeadlineSeconds\); see"
    )
    # Rank 0 may have stopped before the host, which asks twice a second, heard what it was doing.
    loading, _, training = re.findall(pattern, finished.output)
    assert loading.startswith("starting: loading the "), finished.output
    assert training == "training", finished.output
    assert finished.status["roles"]["trainer"]["restarts"] == 3
    assert [line["step"] for line in finished.steps] == list(range(1, STEPS + 1))
    store = Store(url, {})
    assert store.newest().step == STEPS
    store.assert_every_prompt_was_trained_once()

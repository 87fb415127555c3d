"""Sizes of models that are on the hub."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.servers.hub import Hub, hub
from tests.support.tiny.models import tiny_model
from tests.unit.api.manifests import job

from rlhf_api.estimate.model_files import model_sizes

PROGRAM = """
import sys
from rlhf_api.spec import Spec
from rlhf_trainer.process.sizes import job_sizes
print(job_sizes(Spec.model_validate_json(sys.stdin.read())).policy)
assert "torch" not in sys.modules
"""


def sizes_of(spec: str, served: Hub, cache: Path) -> str:
    environ = os.environ | {"HF_ENDPOINT": served.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environ,
        input=spec,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_model_of_the_hub_has_the_size_of_its_configuration(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", tie=True, seed=0)
    spec = job("spec.model={policy: team/tiny, reward: none/such}").spec.model_dump_json(by_alias=True)
    with hub(Hub({"team/tiny": folder})) as served:
        size = sizes_of(spec, served, tmp_path / "cache")
        assert set(served.sent) == {"config.json"}
    assert size == str(model_sizes(job(f"spec.model={{policy: {folder}, reward: x/y}}").spec)["policy"])


def test_what_the_manifest_says_is_not_looked_up(tmp_path: Path) -> None:
    spec = job("spec.model.parameters=7e9").spec.model_dump_json(by_alias=True)
    with hub(Hub({})) as served:
        assert "parameters=7000000000.0" in sizes_of(spec, served, tmp_path / "cache")
        assert not served.sent

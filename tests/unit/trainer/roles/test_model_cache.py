"""The model cache is filled once, by whichever pod comes first, and says what it cannot do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.servers.hub import Hub, hub
from tests.support.tiny.models import tiny_model
from tests.unit.api.manifests import job

from rlhf_api.contract.run import EXIT_INVALID, RunConfig
from rlhf_api.roles import Role
from rlhf_trainer.model_cache import PickledWeights, chosen, models_to_load

NAME = "team/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a hub has it: the weights in a second form too."""
    folder = tiny_model(tmp_path_factory.mktemp("hub"), tie=True, seed=0)
    (folder / "pytorch_model.bin").write_bytes(b"the same again")
    return folder


def config(*overrides: str) -> RunConfig:
    return RunConfig(job="job", spec=job(f"spec.model.policy={NAME}", *overrides).spec, workdir="/w")


def start(served: Hub, place: Path, cache: Path, role: str = "generator", program: str | None = None):
    """The init container's process, with what its host gives it."""
    place.mkdir()
    (place / "run.json").write_text(config().model_dump_json(by_alias=True))
    job_env = {
        "RLHF_RUN_CONFIG": str(place / "run.json"),
        "RLHF_NAME": f"{role}-0",
        "RLHF_INDEX": "0",
        "RLHF_HOST": "127.0.0.1",
        "RLHF_PORT": "1",
        "RLHF_TOKEN": "t",
        "RLHF_TERMINATION_LOG": str(place / "end"),
        "HF_TOKEN": place.name,
    }
    hub_env = {
        "HF_ENDPOINT": served.url,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, *(["-c", program] if program else ["-m", "rlhf_trainer.model_cache"])]
    return subprocess.Popen(
        command, env=os.environ | job_env | hub_env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ended(process) -> tuple[int, str]:
    _, output = process.communicate(timeout=600)
    return process.returncode, output


LOAD = f"""
import torch
from rlhf_trainer.models.pretrained.load import load_policy, load_tokenizer
print(load_policy({NAME!r}, torch.float32).num_parameters(), len(load_tokenizer({NAME!r})))
"""


def test_two_pods_at_once_download_each_file_once_and_roles_load_it_without_the_hub(tmp_path, model):
    """The hub sends no weights before both pods have begun."""
    cache = tmp_path / "cache"
    with hub(Hub({NAME: model}, held=("model.safetensors",), awaited=2)) as served:
        both = [start(served, tmp_path / name, cache) for name in ("one", "two")]
        for code, output in map(ended, both):
            assert code == 0, output
            assert f"{NAME} (spec.model.policy) is in {cache} now" in output
            assert f"{NAME} (spec.model.policy): 0.00 of 0.00 GB" in output
        assert set(served.sent.values()) == {1}
        assert "model.safetensors" in served.sent
        assert "pytorch_model.bin" not in served.sent
    # The hub is away, and nobody asks for it.
    code, output = ended(start(served, tmp_path / "three", cache))
    assert (code, f"is in {cache}\n" in output) == (0, True), output
    offline = os.environ | {"HF_ENDPOINT": served.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD], env=offline, capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert int(loaded.stdout.split()[0]) > 0


def test_a_model_that_the_hub_does_not_have_fails_the_job(tmp_path):
    with hub(Hub({})) as served:
        process = start(served, tmp_path / "one", tmp_path / "cache")
        code, output = ended(process)
    assert code == EXIT_INVALID, output
    end = (tmp_path / "one" / "end").read_text()
    assert end.startswith("spec.model.policy: the hub does not serve it: ")
    assert f"correct the name, or give the pods a token (HF_TOKEN); got '{NAME}'" in end


IMPATIENT = """
from rlhf_trainer import model_cache
from rlhf_trainer.process.role import run_role
model_cache.STALL_SECONDS = 1.0
run_role(model_cache.run)
"""


def test_a_download_that_does_not_get_on_ends_with_its_cause(tmp_path, model):
    with hub(Hub({NAME: model}, held=("model.safetensors",), awaited=100)) as served:
        code, output = ended(start(served, tmp_path / "one", tmp_path / "cache", program=IMPATIENT))
    assert code == 1
    assert f"cannot fill {tmp_path / 'cache'} with {NAME} (spec.model.policy): no byte came for 1 s" in output


def test_a_volume_that_is_too_small_is_said_before_anything_is_downloaded(tmp_path, model):
    with hub(Hub({NAME: model}, sizes={"model.safetensors": 10**18})) as served:
        code, _ = ended(start(served, tmp_path / "one", tmp_path / "cache"))
        assert not served.sent
    assert code == 1
    assert "it needs 1000000000.0 GB more, but only " in (tmp_path / "one" / "end").read_text()


def test_a_volume_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "cache").write_text("no directory")
    with hub(Hub({})) as served:
        code, _ = ended(start(served, tmp_path / "one", tmp_path / "cache"))
    assert code == EXIT_INVALID
    assert "spec.generator.pods.modelCache: " in (tmp_path / "one" / "end").read_text()


@pytest.mark.parametrize(
    ("role", "overrides", "loads"),
    [
        (Role.GENERATOR, (), {NAME: ("spec.model.policy", True)}),
        (Role.REFERENCE, (), {NAME: ("spec.model.policy", True)}),
        (Role.REFERENCE, ("spec.model.reference=team/ref",), {"team/ref": True, NAME: False}),
        (Role.REWARD, ("spec.model.reward=team/judge",), {"team/judge": True, NAME: False}),
        (
            Role.REWARD,
            ("spec.model.reward=team/judge", "spec.reward.models=[{name: a, model: team/other}]"),
            {"team/judge": True, "team/other": True, NAME: False},
        ),
        (Role.TRAINER, ("spec.model.reward=team/judge",), {NAME: True, "team/judge": True}),
        (Role.GENERATOR, ("spec.model.tokenizer=team/words",), {NAME: True, "team/words": False}),
        (Role.GENERATOR, ("spec.model.policy=./here", "spec.model.tokenizer=/there"), {}),
    ],
)
def test_each_role_takes_what_it_loads(role, overrides, loads):
    named = models_to_load(config(*overrides), role)
    expected = {name: weights if isinstance(weights, bool) else weights[1] for name, weights in loads.items()}
    assert {name: weights for name, (_, weights) in named.items()} == expected


def test_weights_are_taken_in_one_form(monkeypatch):
    beside = ["config.json", "generation_config.json", "merges.txt", "tokenizer.json"]
    both = [
        *beside,
        "model-1.safetensors",
        "model-2.safetensors",
        "pytorch_model.bin",
        "model.gguf",
        "onnx/model.onnx",
    ]
    assert chosen(both, weights=True) == sorted([*beside, "model-1.safetensors", "model-2.safetensors"])
    assert chosen(both, weights=False) == beside
    pickles = [*beside, "pytorch_model.bin"]
    with pytest.raises(PickledWeights, match="RLHF_PICKLED_WEIGHTS=allow"):
        chosen(pickles, weights=True)
    assert chosen(pickles, weights=False) == beside
    monkeypatch.setenv("RLHF_PICKLED_WEIGHTS", "allow")
    assert chosen(pickles, weights=True) == sorted(pickles)

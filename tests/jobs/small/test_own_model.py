"""examples/own_model as a user runs it: made, trained by PPO on a vLLM that serves it, killed, and opened elsewhere."""

import json
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from tests.support.rlhf import ROOT, Finished, run, succeed

EXAMPLE = ROOT / "examples" / "own_model"
OPENED = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("policy", trust_remote_code=True)
assert type(model).__name__ == "PrimerForCausalLM"
assert not any(name.startswith(("examples", "rlhf")) for name in sys.modules)
save_file({"logits": model(torch.arange(8)[None]).logits}, "logits.safetensors")
"""
UNSERVED = """
from examples.own_model.primer import PrimerConfig, PrimerForCausalLM, PrimerModel

class UnservedConfig(PrimerConfig):
    model_type = "unserved"

class UnservedModel(PrimerModel):
    config_class = UnservedConfig

class UnservedForCausalLM(PrimerForCausalLM):
    config_class = UnservedConfig
    _supports_attention_backend = False
"""


@pytest.fixture(scope="module")
def sft(tmp_path_factory) -> Finished:
    return succeed(EXAMPLE / "sft.yaml", tmp_path_factory.mktemp("own") / "sft", "spec.steps=40")


@pytest.fixture(scope="module")
def ppo(sft) -> Finished:
    """With a critic and a reference of the same architecture."""
    kinds = ("Model", "ForCausalLM", "ForTokenClassification")
    return succeed(
        EXAMPLE / "grpo.yaml",
        sft.workdir.parent / "ppo",
        f"spec.model.policy={sft.workdir / 'policy'}",
        f"spec.model.architectures={json.dumps([f'examples.own_model.primer:Primer{kind}' for kind in kinds])}",
        *("spec.algorithm=ppo", "spec.grpo={}", "spec.ppo.minibatchSize=64", "spec.rollout={}"),
        *("spec.steps=4", "spec.data.promptsPerStep=8", "spec.evaluation=null"),
        "spec.checkpoint.everySteps=2",
        RLHF_FAULTS="tests.support.faults:kill_trainer_after_two_steps",
    )


def test_it_trains_and_is_served_and_goes_on_after_a_death(ppo):
    assert ppo.status["roles"]["trainer"]["restarts"] == 1
    assert set(ppo.status["roles"]) == {"trainer", "generator", "reward", "reference"}
    assert [step["step"] for step in ppo.steps] == [1, 2, 3, 4]
    assert max(step["logprob_difference"] for step in ppo.steps) < 1e-4, "vLLM computes the same model"
    assert "Using Transformers modeling backend" in ppo.log("generator-0")


def test_what_is_saved_opens_without_this_package(sft, ppo, tmp_path):
    shutil.copytree(ppo.workdir / "policy", tmp_path / "policy")
    subprocess.run([sys.executable, "-c", OPENED], cwd=tmp_path, env={"HF_HOME": str(tmp_path)}, check=True)
    before, after = (load_file(run.workdir / "policy" / "model.safetensors") for run in (sft, ppo))
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    assert load_file(tmp_path / "logits.safetensors")["logits"].isfinite().all()
    assert (ppo.workdir / "critic" / "primer.py").is_file()


def test_one_that_vllm_cannot_serve_is_refused_with_its_reason_and_runs_in_the_trainer(sft, tmp_path):
    policy = shutil.copytree(sft.workdir / "policy", tmp_path / "policy")
    config = json.loads((policy / "config.json").read_text())
    config |= {"model_type": "unserved", "architectures": ["UnservedForCausalLM"]}
    (policy / "config.json").write_text(json.dumps(config))
    (tmp_path / "unserved_model.py").write_text(UNSERVED)
    given = (
        f"spec.model.policy={policy}",
        "spec.model.architectures=[unserved_model:UnservedModel, unserved_model:UnservedForCausalLM]",
        *("spec.steps=1", "spec.evaluation=null", "spec.rollout={}"),
    )
    paths = ":".join(map(str, (tmp_path, ROOT / "operator", ROOT / "trainer_image")))
    done = run(EXAMPLE / "grpo.yaml", tmp_path / "served", *given, PYTHONPATH=paths)
    assert done.code == 1
    assert "spec.generator: vLLM refuses the model or its options: Model architectures " in done.output
    assert (
        "['UnservedForCausalLM'] are not supported for now. Use others, or `generator.shared" in done.output
    )
    assert "started again" not in done.output
    shared = (*given, "spec.generator.sharedWithTrainer=true")
    succeed(EXAMPLE / "grpo.yaml", tmp_path / "shared", *shared, PYTHONPATH=paths)

"""Model classes of a user's own: what is refused, and whose code is run."""

import json
from pathlib import Path

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from tests.unit.api.manifests import unchecked

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.check import check
from rlhf_trainer.models.pretrained import architectures
from rlhf_trainer.models.pretrained.create import create_policy
from rlhf_trainer.models.pretrained.load import load_critic, load_policy, load_tokenizer

PRIMER = [
    f"examples.own_model.primer:Primer{kind}" for kind in ("Model", "ForCausalLM", "ForTokenClassification")
]
WRONG = """
from transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedModel

class TheirsForCausalLM(LlamaForCausalLM):
    pass

class NamelessForCausalLM(PreTrainedModel):
    config_class = PretrainedConfig

def FuncForCausalLM(config):
    pass
"""
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A model of the example's architecture as a trainer saves it."""
    folder = tmp_path_factory.mktemp("primer")
    architectures.register(PRIMER)
    create_policy("primer", SMALL, byte_tokenizer(), seed=0).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_they_load_as_any_other_and_may_be_registered_again(saved):
    architectures.register(PRIMER)
    assert type(load_policy(str(saved), torch.float32)).__name__ == "PrimerForCausalLM"
    critic = load_critic(str(saved), torch.float32)
    assert type(critic).__name__ == "PrimerForTokenClassification"
    assert type(critic.model).__name__ == "PrimerModel"


def test_code_beside_a_model_is_never_run(saved, tmp_path):
    """The same files with a model type that nobody has named."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "primer.PrimerForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "unnamed"}))
    ran = tmp_path / "ran"
    (tmp_path / "primer.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(ValueError, match=r"spec\.model\.architectures"):
        load_policy(str(tmp_path), torch.float32)
    load_tokenizer(str(tmp_path))
    assert not ran.exists()


def test_all_that_is_wrong_with_classes_is_told_at_once(tmp_path, monkeypatch):
    (tmp_path / "wrong_architectures.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"wrong_architectures:{name}" for name in ("Theirs", "Nameless", "Func", "None")]
    with pytest.raises(InvalidJob) as raised:
        architectures.register([f"{name}ForCausalLM" for name in names])
    theirs, nameless, function, absent = map(str, raised.value.problems)
    assert theirs.startswith("spec.model.architectures[0]: 'llama' is already used by a Transformers config")
    assert nameless.startswith("spec.model.architectures[1]: needs a config_class with a model_type")
    assert function.startswith(
        "spec.model.architectures[2]: must be a subclass of transformers.PreTrainedModel"
    )
    assert "spec.model.architectures[3]" in absent
    assert "has no attribute 'NoneForCausalLM'" in absent


@pytest.mark.parametrize(
    ("names", "more", "messages"),
    [
        (PRIMER, (), []),
        (PRIMER[1:], ("spec.generator.sharedWithTrainer=true",), []),
        (PRIMER[1:], (), ["spec.model.architectures: vLLM makes the model without its head"]),
        (["a.b:LMHead"], (), ["spec.model.architectures[0]: must name a class by its kind, ...Model, "]),
    ],
)
def test_what_a_manifest_may_name(names, more, messages):
    problems = map(str, check(unchecked(f"spec.model.architectures={json.dumps(names)}", *more)))
    assert [text[: len(start)] for text, start in zip(problems, messages, strict=True)] == messages

"""`spec.model`: the models that a job starts from, and where each is found."""

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, JsonValue

from ..field_types import DType, Frozen, ImportPath, ModelField, PositiveFloat
from .lora import Adapters, Lora

Part = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?!\[\]-]+(\.[A-Za-z0-9_*?!\[\]-]+)*$", max_length=128)]
"""A part of a model: neighbouring parts of its parameters' names, with `*`, `?` and `[0-9]` as in file names."""


def is_of_part(name: str, part: str) -> bool:
    """True if the parameter of this name belongs to the part: `layers.1` has `model.layers.1.mlp.up_proj.weight`, and
    none of layer 11."""
    return fnmatchcase(f".{name}.", f"*.{part}.*")


class CreateTokenizer(Frozen):
    """A byte-level BPE tokenizer trained on the job's own data."""

    vocab_size: int = Field(1024, ge=260)


class CreateModel(Frozen):
    """A policy with random weights, for where there is none to start from."""

    model_type: str
    """A Hugging Face model type, such as `qwen2` or `llama`."""
    config: dict[str, JsonValue] = {}
    """Fields of that type's Hugging Face configuration; vocabulary and special tokens are the tokenizer's."""
    tokenizer: CreateTokenizer = CreateTokenizer()


class Model(Frozen):
    """Paths or hub names in Hugging Face format."""

    policy: str | None = None
    """Model that is trained; this or `create`."""
    reference: str | None = None
    """Frozen policy of the KL penalty, the policy at the start of the run unless given; `distillation`'s teacher."""
    critic: str | None = None
    """Initial critic; a reward model of whole responses, or else the policy, unless given."""
    reward: str | None = None
    """A sequence-classification model with one output, which scores sampled responses."""
    tokenizer: str | None = None
    """Tokenizer; the policy's own unless given."""
    create: CreateModel | None = None
    architectures: tuple[ImportPath, ...] = Field((), max_length=8)
    """Classes that Transformers lacks: `[my.model:MyModel, my.model:MyForCausalLM]`
    (docs/guides/models/own-model.md)."""
    parameters: PositiveFloat | None = None
    """Number of parameters of the policy, such as 7.6e9; with it and `gpu.memoryGigabytes` memory is checked
    beforehand.
    """
    lora: Adapters | None = None
    """Low-rank adapters, trained in place of the weights (docs/guides/models/lora.md)."""
    train_vision: bool = False
    """Train the part that reads images too, which is frozen otherwise (docs/guides/models/images.md)."""
    freeze: tuple[Part, ...] = Field((), max_length=64)
    """Parts of the policy that are not trained, by its parameters' names: `embed_tokens`, `layers.[0-3]`
    (docs/guides/models/parts.md)."""
    dtype: DType = "bfloat16"
    """The compute dtype of every role that does not set its own; optimizer states are always float32."""
    float32_head: bool = False
    """Policy and reference have their logits in float32, in the trainer and in vLLM (docs/guides/models/parts.md)."""

    def is_frozen(self, name: str) -> bool:
        """True if the policy's parameter of this name is named by `freeze`."""
        return any(is_of_part(name, part) for part in self.freeze)

    def adapter(self, field: ModelField) -> Lora | None:
        """The adapter of the model in this field, `policy` or `critic`, where that alone is trained."""
        return self.lora.of(field) if self.lora else None


VISION = ("qwen3_vl",)
INTERLEAVED = "mrope_interleaved"
"""The key of their `rope_parameters` without which vLLM places images otherwise than Transformers."""
"""Types of the models that read images and can be trained."""
BASE, CAUSAL = "Model", "ForCausalLM"
KINDS = (BASE, CAUSAL, "ForSequenceClassification", "ForTokenClassification")
"""Ends of Transformers' own class names: the model without a head, policy and reference, reward model, critic."""


def kind_of(name: str) -> str | None:
    """The kind of the class `module:name`; None for a name with another end."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)

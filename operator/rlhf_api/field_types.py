"""Base classes and field types of the contract's models."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel


class Frozen(BaseModel):
    """Immutable model with camelCase keys; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Returns the same object, since it is immutable: copying the default sections into every spec took a sixth of
        the time of reading one."""
        return self


def former(key: str, name: str) -> AliasChoices:
    """A field's key, and its name in an earlier release, which manifests and stored objects may still use."""
    return AliasChoices(key, name)


def former_names(model: type[BaseModel]) -> dict[str, str]:
    """Earlier names of a model's fields -> their Python names."""
    return {
        str(choice): name
        for name, field in model.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
        for choice in field.validation_alias.choices[1:]
    }


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
"""Fields that spec.evaluation has and sampling lacks."""


class Report(Frozen):
    """Model of machine-written data: Python names are accepted beside the keys, and keys of other releases are ignored;
    a manifest allows neither."""

    model_config = ConfigDict(extra="ignore", validate_by_name=True, validate_by_alias=True)


DType = Literal["float32", "bfloat16", "float16"]
ModelField = Literal["policy", "critic", "reward", "reference"]
"""Fields of `spec.model` that name a model."""
Head = Literal["causal", "value", "score", "token_score"]
"""Output of a model: logits over the vocabulary, a value for each token, or a score for each sequence or token."""
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
COLDEST, HOTTEST = 0.01, 2.0
"""Bounds of vLLM's temperatures above 0: it takes a lower one for the lowest, and refuses requests at a higher one."""
Epsilon = Annotated[float, Field(ge=1e-30)]
"""Adam's epsilon: in float32 a much smaller one is 0, and weights whose gradient is 0 become NaN."""
Decay = Annotated[float, Field(ge=0, lt=1)]
"""Share of a moving average that it keeps at each step."""
Fraction = Annotated[float, Field(ge=0, le=1)]

# Restricted to what Rust's, Go's and Python's regular expressions share: no \w and \d, which differ on letters like é.
OBJECT = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
TRACKER_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""Built-in trackers: kind -> the package of its client."""
READY_MADE = {
    "harbor": "rlhf_trainer.environments.ready.harbor_task:HarborTask",
    "openenv": "rlhf_trainer.environments.ready.openenv_server:OpenEnvServer",
    "reasoning-gym": "rlhf_trainer.environments.ready.reasoning_task:ReasoningTask",
    "textarena": "rlhf_trainer.environments.ready.textarena_game:TextArenaGame",
    "verifiers": "rlhf_trainer.environments.ready.verifiers_agents:VerifiersAgents",
}
"""Environments of the package: name -> the class that plays another collection's."""
_IMPORT_PATH = rf"^{OBJECT}$"
_ENVIRONMENT = rf"^({'|'.join(READY_MADE)}|{OBJECT})$"
_SAMPLER = rf"^(uniform|newest|prioritized|{OBJECT})$"
_TRACKER = rf"^({'|'.join(TRACKER_PACKAGES)}|{OBJECT})$"
_WORD = r"^[A-Za-z_][A-Za-z0-9_]*$"
_HTTP_URL = r"^https?://[^/@ ]+(/[^ ]*)?$"
_LABEL = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_JOB_NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
SCHEMES = ("file", "s3", "gs", "az")
"""Kinds of object stores, by their URLs."""
_STORE_URL = rf"^(file:///|({'|'.join(SCHEMES[1:])})://)[^/?#]+(/[^/?#]+)*/?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"
_CONTROLLER = r"^[a-z0-9.-]+/[A-Za-z0-9._/-]+$"
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_PATH = r"^(/\.?[A-Za-z0-9_-][^/:]*)+$"
_SUB_PATH = r"^\.?[A-Za-z0-9_-][^/:]*(/\.?[A-Za-z0-9_-][^/:]*)*$"
CARRIED = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"
REASON = r"^[A-Za-z][A-Za-z0-9._/-]*$"
PATTERNS = {
    REASON: "must be a word of Kubernetes, such as OOMKilled or Evicted",
    _IMPORT_PATH: "must name a Python object as package.module:name",
    _TRACKER: f"must be {', '.join(TRACKER_PACKAGES)}, or name a Python class as package.module:name",
    _SAMPLER: "must be uniform, newest, prioritized, or name a Python function as package.module:name",
    _ENVIRONMENT: f"must be {', '.join(READY_MADE)}, or name a Python class as package.module:name",
    _WORD: "must be a word of letters, digits and _, with no digit first",
    _HTTP_URL: "must be a URL that begins with http:// or https:// and has no user, password or space",
    _LABEL: "must be at most 40 of a-z, 0-9 and -, with no - at either end",
    _JOB_NAME: "must be at most 40 of a-z, 0-9 and -, begin with a letter and not end with -",
    _STORE_URL: "must be a URL that begins with file:///, s3://, gs:// or az://, without ?, # and empty parts (//)",
    QUANTITY: 'must be a Kubernetes quantity, such as "500m" or "16Gi"',
    _CONTROLLER: "must be a controller's name with its domain, such as kueue.x-k8s.io/multikueue",
    _NAME: "must be the name of an object in the cluster: a-z, 0-9, - and . with a letter or digit at both ends",
    _PATH: "must be an absolute path without .. and : and with no / at its end",
    _SUB_PATH: "must be a relative path without .. and : and with no / at its end",
    CARRIED: "must be a relative path of letters, digits, _, . and -, whose parts begin with a letter, a digit or _",
}
"""Descriptions of the patterns, for messages."""


FORMER_METRICS = {"answer_length_mean": "response_length_mean"}
"""Metrics of an earlier release, by their names there."""


def with_present_names(step: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics, of any release, by their names in this one."""
    return {FORMER_METRICS.get(name, name): figure for name, figure in step.items()}


def names_function(text: str) -> bool:
    """True for `package.module:name`, unless a file of that name exists."""
    return re.fullmatch(OBJECT, text) is not None and not Path(text).exists()


ImportPath = Annotated[str, Field(pattern=_IMPORT_PATH, max_length=256)]
"""A Python object as `package.module:name`."""
EnvironmentClass = Annotated[
    str,
    Field(pattern=_ENVIRONMENT, max_length=256),
    AfterValidator(lambda name: READY_MADE.get(name, name).replace(".py:", ":")),
]
"""An environment of the package by its name, or a class of your own as `package.module:name`; the class's path."""
HttpUrl = Annotated[str, Field(pattern=_HTTP_URL, max_length=1024)]
"""A URL for HTTP requests."""
Variable = Annotated[str, Field(pattern=_WORD, max_length=256)]
"""The name of an environment variable."""
Metric = Annotated[
    str, Field(pattern=_WORD, max_length=128), AfterValidator(lambda name: FORMER_METRICS.get(name, name))
]
"""The name of a step's metric."""
RewardName = Annotated[str, Field(pattern=_WORD, max_length=64)]
"""The name of a reward in the metrics."""
Sampler = Annotated[str, Field(pattern=_SAMPLER, max_length=256)]
"""A built-in sampler of the replay buffer, or your own as `package.module:name`."""
TrackerKind = Annotated[str, Field(pattern=_TRACKER, max_length=256)]
"""A built-in tracker, or one's own as `package.module:name`."""
Label = Annotated[str, Field(pattern=_LABEL, max_length=40)]
"""A DNS label of at most 40 characters, so that names made from it stay within 63."""
JobName = Annotated[str, Field(pattern=_JOB_NAME, max_length=40)]
"""The name of a job, and of its Service: a DNS label (RFC 1035), which begins with a letter."""
StoreUrl = Annotated[str, Field(pattern=_STORE_URL, max_length=1024)]
"""A place in an object store."""
Quantity = Annotated[str, Field(pattern=QUANTITY, max_length=32)]
"""A Kubernetes quantity, such as `500m` or `16Gi`."""


def _digits(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


INT_OR_STRING = "x-kubernetes-int-or-string"
Amount = Annotated[
    Quantity,
    BeforeValidator(_digits),
    WithJsonSchema(
        {
            INT_OR_STRING: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "maxLength": 32,
        }
    ),
]
"""A quantity that may be a whole number without quotes: `cpu: 8`."""
Name = Annotated[str, Field(pattern=_NAME, max_length=253)]
"""The name of another object in the cluster."""
Controller = Annotated[str, Field(pattern=_CONTROLLER, max_length=63)]
"""A controller as Kubernetes' Jobs name one in `managedBy`."""
AbsolutePath = Annotated[str, Field(pattern=_PATH, max_length=256)]
"""A path from the root of a file system."""
SubPath = Annotated[str, Field(pattern=_SUB_PATH, max_length=256)]
"""A path inside a volume."""

CarriedName = Annotated[str, Field(pattern=CARRIED, max_length=128)]
"""The name of a file that travels with a job."""
CarriedText = Annotated[str, Field(max_length=256 << 10)]
"""Its content, which has a limit of its own: a spec's."""

RowKind = Literal["prompts", "responses", "pairs", "graded", "labeled", "stepwise"]
"""Dataset rows: `{prompt}`, `{prompt, answer}`, or `{prompt, pos_answers, neg_answers}`."""

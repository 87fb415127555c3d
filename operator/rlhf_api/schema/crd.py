"""Generates the CustomResourceDefinitions of RLHFJob and of the runtimes from the pydantic models.

python -m rlhf_api.schema.crd > crds/rlhfjobs.rlhf.dev.yaml
python -m rlhf_api.schema.crd RLHFRuntime > crds/rlhfruntimes.rlhf.dev.yaml

The schema has the models' rules as far as a structural schema allows. It sets no defaults, so that a stored object
stays as its author wrote it (a role's pods override the job's only in the fields that they set) and a later release may
change defaults; each description names its default instead. The one exception is `spec.generator.replicas`, which
`kubectl scale` can only read if it is stored. Objects are closed: kubectl, whose validation reads this schema, refuses
a misspelt key, and the server drops it for other clients. Every string, list and map has a limit. A model
used in several places describes its fields in one of them, and the file writes a repeated subtree once, as a YAML
anchor.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from ..contract.status import JobStatus
from ..host.printing import write_line
from ..job import API_VERSION, KIND, Metadata, RLHFJob
from ..manifest.runtime import Runtime, RuntimeSpec
from ..spec import Spec
from .structural import Schema, Structural, describe_once, rules_of

PLURAL = "rlhfjobs"
CLUSTER_RUNTIME = "ClusterRLHFRuntime"
RUNTIMES = ("RLHFRuntime", CLUSTER_RUNTIME)
GROUP, VERSION = API_VERSION.split("/")

_COLUMNS = (
    # name, type, path, priority
    ("Phase", "string", ".status.phase", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Step", "integer", ".status.step", 0),
    ("Steps", "integer", ".status.totalSteps", 0),
    ("Reward", "number", ".status.reward", 0),
    ("KL", "number", ".status.kl", 0),
    ("Weights", "integer", ".status.weightVersion", 0),
    ("Gen", "integer", ".status.roles.generator.desired", 0),
    ("GenReady", "integer", ".status.roles.generator.ready", 0),
    ("GPUs", "integer", ".status.gpus", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Algorithm", "string", ".spec.algorithm", 1),
    ("Checkpoint", "integer", ".status.lastCheckpoint.step", 1),
    ("Staleness", "number", ".status.staleness", 1),
    ("Oldest", "integer", ".status.stalenessMax", 1),
    ("TrainerIdle", "number", ".status.trainerIdle", 1),
    ("GenIdle", "number", ".status.generatorIdle", 1),
    ("Continued", "integer", ".status.responsesContinued", 1),
    ("Effective", "number", ".status.importanceEffective", 1),
    ("Tokens/s", "number", ".status.tokensPerSecond", 1),
    ("Queue", "integer", ".status.queue", 1),
    ("Message", "string", ".status.message", 1),
)
_RUNTIME_COLUMNS = (
    ("Image", "string", ".spec.pods.image", 0),
    ("GPUs", "integer", ".spec.pods.gpu.count", 0),
    ("Gang", "string", ".spec.scheduling.gang", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
_SELECTABLE = (".spec.algorithm", ".spec.suspend", ".status.phase")
"""Selectable fields of `kubectl get --field-selector` and watches."""
_WIDTH = 400
_SHARED = 50
"""Minimum length, in characters of JSON, of a subtree that is written once as an anchor."""


def crd(minor: int = 37) -> Schema:
    """The RLHFJob definition for a server of Kubernetes 1.`minor`.

    Without CEL rules before 1.25 and selectable fields before 1.30, which do not support them.
    """
    scale = {
        "specReplicasPath": ".spec.generator.replicas",
        "statusReplicasPath": ".status.generatorReplicas",
        "labelSelectorPath": ".status.selector",
    }
    version: Schema = {"subresources": {"status": {}, "scale": scale}}
    if minor >= 30:
        version["selectableFields"] = [{"jsonPath": at} for at in _SELECTABLE]
    version["additionalPrinterColumns"] = [_column(*column) for column in _COLUMNS]
    names = {"shortNames": ["rlhf"], "categories": ["all"]}
    return _definition(KIND, "Namespaced", _root(cel=minor >= 25), version, names)


def runtime_crd(kind: str, minor: int = 37) -> Schema:
    """The definition of RLHFRuntime or ClusterRLHFRuntime."""
    spec = Structural(RuntimeSpec, cel=minor >= 25).root
    root: Schema = {"type": "object", "description": (Runtime.__doc__, ""), "required": ["spec"]}
    root["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }
    describe_once(root)
    columns = {"additionalPrinterColumns": [_column(*column) for column in _RUNTIME_COLUMNS]}
    return _definition(kind, "Cluster" if kind == CLUSTER_RUNTIME else "Namespaced", root, columns)


def _definition(
    kind: str, scope: str, root: Schema, version: Schema, names: Mapping[str, Any] | None = None
) -> Schema:
    """A definition with one version, with `root` as its schema; `version` and `names`: further keys of those
    sections.
    """
    plural = f"{kind.lower()}s"
    named = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()} | dict(
        names or {}
    )
    served = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        **version,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": named, "versions": [served]},
    }


def definition(kind: str = KIND, minor: int = 37) -> Schema:
    """The definition of this kind for a server of Kubernetes 1.`minor`."""
    return crd(minor) if kind == KIND else runtime_crd(kind, minor)


def _column(name: str, kind: str, path: str, priority: int) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _root(*, cel: bool) -> Schema:
    spec = Structural(Spec, cel=cel).root
    generator = spec["properties"]["generator"]
    generator["default"] = {}
    generator["properties"]["replicas"]["default"] = 1
    # After `reward`, whose functions are described, and not its metrics that have the same fields.
    spec["properties"]["evaluation"] = spec["properties"].pop("evaluation")
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        # A schema may restrict only the name in metadata.
        "metadata": {
            "type": "object",
            "properties": {"name": Structural(Metadata, cel=cel).root["properties"]["name"]},
        },
        "spec": spec,
        "status": Structural(JobStatus, cel=cel, authored=False).root,
    }
    root: Schema = {"type": "object", "description": (RLHFJob.__doc__, ""), "required": ["spec"]}
    if cel:
        root["x-kubernetes-validations"] = rules_of("RLHFJob")
    root["properties"] = properties
    describe_once(root)
    return root


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes short mappings and rules on one line: indentation would be a quarter of the file."""

    def represent_mapping(self, tag: str, mapping: Any, *_: Any, **__: Any) -> yaml.MappingNode:
        short = "rule" in mapping or len(json.dumps(mapping)) <= _WIDTH
        return super().represent_mapping(tag, mapping, flow_style=short)

    def ignore_aliases(self, data: Any) -> bool:
        return not isinstance(data, dict) or len(json.dumps(data)) < _SHARED


def _interned(node: Any, known: dict[str, Any]) -> Any:
    """The same tree with equal subtrees as one object, which `_Dumper` writes once."""
    if isinstance(node, dict):
        made = {key: _interned(value, known) for key, value in node.items()}
        return known.setdefault(json.dumps(made), made)
    return [_interned(item, known) for item in node] if isinstance(node, list) else node


def document(minor: int = 37, kind: str = KIND) -> str:
    """The definition as YAML, with repeated subtrees written once."""
    command = "python -m rlhf_api.schema.crd" + (f" {kind}" if kind != KIND else "")
    head = f"# Made by `{command}`; a test keeps it in step with the models.\n"
    tree = _interned(definition(kind, minor), {})
    return head + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=2**31, default_flow_style=None)


if __name__ == "__main__":
    write_line(document(kind=sys.argv[1] if sys.argv[1:] else KIND).removesuffix("\n"), sys.stdout)

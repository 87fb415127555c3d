"""Writes the chart's README from the comments in its values.yaml: every value, its default and meaning.

.venv/bin/python tools/make_chart_reference.py
"""

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

CHART = Path(__file__).parents[1] / "charts" / "rlhf-operator"
PAGE = CHART / "README.md"
HEAD = """# The chart of the RLHF operator

<!-- Made from values.yaml by tools/make_chart_reference.py; a test keeps it in step. -->

```
helm install rlhf oci://registry.rlhf.dev/charts/rlhf-operator --version 0.2.0 -n rlhf-system --create-namespace
```

It installs the operator and three definitions: RLHFJob, a training run as one resource; RLHFRuntime and
ClusterRLHFRuntime, an administrator's pod settings for jobs that name them. Kubernetes 1.20 or newer.

```
helm upgrade rlhf oci://registry.rlhf.dev/charts/rlhf-operator -n rlhf-system --reset-then-reuse-values
helm uninstall rlhf -n rlhf-system
```

An upgrade brings the new definitions too, and running jobs go on. After an uninstall definitions and jobs stay.

[On a cluster](../../docs/guides/clusters/cluster.md) tells how to install, observe and remove it, [upgrades and version
skew](../../docs/guides/clusters/upgrades.md) which versions work together. Helm refuses values that are not in this
table, and values of the wrong type.

| value | default | meaning |
| --- | --- | --- |
"""


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of every value; what is not given for one is in the comment of its parent."""
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, str, str]]:
        for key, value in node.value:
            name, meaning = where + key.value, _comment(lines, key.start_mark.line)
            if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
                if meaning:
                    yield name, "", meaning
                yield from walk(value, f"{name}.")
            else:
                default = yaml.SafeLoader("").construct_object(value, deep=True)
                yield name, f"`{json.dumps(default)}`", meaning

    root = yaml.compose(text, yaml.SafeLoader)
    yield from walk(root, "")


def _comment(lines: list[str], line: int) -> str:
    """The comment directly above a line."""
    words: list[str] = []
    while line and lines[line - 1].lstrip().startswith("# "):
        line -= 1
        words.insert(0, lines[line].lstrip()[2:])
    return " ".join(words)


def page() -> str:
    values = rows((CHART / "values.yaml").read_text())
    return HEAD + "".join(f"| `{name}` | {default} | {meaning} |\n" for name, default, meaning in values)


if __name__ == "__main__":
    PAGE.write_text(page())

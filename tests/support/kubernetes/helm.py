"""The chart, through the real helm."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "rlhf-operator"
_HELM = Path(sys.executable).with_name("helm")
_TIMEOUT_S = 240


class Loader(yaml.CSafeLoader):
    """Takes `1e-30` for a number, as an API server's reader does; YAML 1.1 wants a dot in it."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class HelmError(Exception):
    """helm failed; the text is what it said."""


def helm(*arguments: str, kubeconfig: Path | None = None, input: str | None = None) -> str:
    """Runs helm; returns its output. Raises HelmError with its error output."""
    cluster = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    done = subprocess.run(
        [str(_HELM), *arguments, *cluster],
        input=input,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise HelmError(f"helm {' '.join(arguments)}: {done.stderr.strip()}{done.stdout.strip()}")
    return done.stdout


def render(values: dict[str, Any] | None = None, *arguments: str) -> list[dict[str, Any]]:
    """Every object of release `rlhf` in namespace `rlhf-system`, `helm test`'s pod among them."""
    command = ("template", "rlhf", str(CHART), "--namespace=rlhf-system", "--values=-", *arguments)
    text = helm(*command, input=yaml.safe_dump(values or {}))
    return [body for body in yaml.load_all(text, Loader) if body]


def the(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind, or of a kind and name."""
    (item,) = (o for o in objects if o["kind"] == kind and name in ("", o["metadata"]["name"]))
    return item

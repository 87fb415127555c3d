"""Any Kubernetes cluster, through kubectl."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

_KUBECTL = Path(sys.executable).with_name("kubectl")
_POLL_S = 0.1
_SHARE = 0.25
"""Of the time of waiting that looks may take: each is a new process, beside tests that need the processor."""
T = TypeVar("T")


class KubectlError(Exception):
    """kubectl failed; the text is what it said."""


def kubectl(kubeconfig: Path, *arguments: str, input: str | None = None, timeout: float = 240) -> str:
    """Runs kubectl; returns its output. Raises KubectlError with its error output, or after `timeout` seconds."""
    environment = os.environ | {"KUBECACHEDIR": str(kubeconfig.parent / "cache")}
    command = [str(_KUBECTL), f"--kubeconfig={kubeconfig}", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KubectlError(f"kubectl {' '.join(arguments)}: not done after {timeout:g} s") from None
    if done.returncode != 0:
        raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def get(kubeconfig: Path, *arguments: str) -> Any:
    """`kubectl get ... -o json`, parsed."""
    return json.loads(kubectl(kubeconfig, "get", *arguments, "-o", "json"))


def eventually(probe: Callable[[], T], what: str, timeout: float = 240) -> T:
    """The first true thing that `probe` returns; a failing kubectl counts as not yet.

    Raises:
        TimeoutError: nothing true came within `timeout` seconds of `what`.
    """
    deadline = time.monotonic() + timeout
    last = ""
    while (begun := time.monotonic()) < deadline:
        try:
            if result := probe():
                return result
            last = ""
        except KubectlError as error:
            last = f": {error}"
        time.sleep(max(_POLL_S, (time.monotonic() - begun) * (1 / _SHARE - 1)))
    raise TimeoutError(f"{what}: not within {timeout:g} s{last}")


@contextmanager
def new_namespace(kubeconfig: Path) -> Iterator[str]:
    """A namespace with a name of its own, in which pods may be made; deleted afterwards, which nobody waits for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl(kubeconfig, "create", "namespace", name)
    # The service account that admission wants for a pod comes a moment later.
    probe = ("run", "probe", f"--namespace={name}", "--image=probe", "--dry-run=server", "--output=name")
    try:
        eventually(lambda: kubectl(kubeconfig, *probe), f"pods accepted in namespace {name}")
        yield name
    finally:
        kubectl(kubeconfig, "delete", "namespace", name, "--wait=false")

"""Debian's packages that the test cluster and the tests of the page need, and the cache folder of built binaries."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_store.locked import locked

CONTROL_PLANE = ("etcd-server", "openssl")
BUILD = ("golang-go", "golang-github-modern-go-reflect2-dev", "gcc", "libc6-dev", "dpkg-dev")
NODE = ("containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "nftables")
IMAGES = ("mmdebstrap", "buildah", "skopeo", "docker-registry")
BROWSER = ("chromium-headless-shell", "fonts-dejavu-core")
_INSTALL_S = 900
_LOCK_S = 3600


class Unavailable(Exception):
    """This machine cannot have the packages; one line says why and what to do instead."""


def cache() -> Path:
    """Folder of built things, which stay there between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "rlhf-operator"


@contextmanager
def lock(name: str) -> Iterator[None]:
    """One at a time of those who share the cache."""
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / f"{name}.lock", _LOCK_S):
        yield


def require(
    packages: tuple[str, ...],
    purpose: str = "the test cluster",
    instead: str = "set RLHF_TEST_KUBECONFIG to a cluster",
) -> None:
    """Installs what is missing of `packages`."""
    system = _system()
    if "VERSION_CODENAME=bookworm" not in system:
        name = next((line for line in system if line.startswith("PRETTY_NAME=")), "no Linux").split("=")[-1]
        raise Unavailable(
            f"{purpose} is made of Debian 12's packages and this is {name}: "
            f"{instead}, or run in a debian:12 container as root"
        )
    with lock("packages"):  # apt-get does not wait for another
        if missing := _missing(packages):
            _install(missing, f"{purpose} needs packages: as root `{{}}`, or {instead}")


def _install(packages: list[str], hint: str) -> None:
    command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        raise Unavailable(hint.format(" ".join(command)))
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-qq"], command):
        done = subprocess.run(
            step, env=quiet, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"`{' '.join(step)}` failed: {done.stderr.strip().splitlines()[-1:]}")


def require_root() -> None:
    """The node's namespaces, cgroups and containers are root's."""
    if os.geteuid() != 0:
        raise Unavailable(
            "the test cluster with a node needs root: use sudo, or set RLHF_TEST_KUBECONFIG to a cluster"
        )


def _system() -> list[str]:
    try:
        return Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return []


def _missing(packages: tuple[str, ...]) -> list[str]:
    show = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    known = subprocess.run(show, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
    return [package for package in packages if f"{package} installed" not in known]

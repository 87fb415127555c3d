"""The plugin `kubectl rlhf` for krew: an archive for each platform, and the manifest that names them with their sums.

An archive has the packages of the operator's extra as unpacked wheels, by hash as the operator's image has them: those
of pure Python once, others for each Python. On the user's machine nothing is installed or downloaded but the archive;
Python itself is theirs.
"""

import io
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import yaml
from tools.release.files import sha256
from tools.release.steps import FILES, HOME, ROOT, VERSION, run, say

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Of Linux with glibc, as krew calls them and as wheels do."""
_PLUGIN = Path(__file__).with_name("plugin")
_GLIBCS = ("2014", "_2_17", "_2_28")


def make_plugin(
    made: Path,
    wheel: Path,
    architectures: tuple[str, ...] = tuple(PLATFORMS),
    pythons: tuple[str, ...] = PYTHONS,
) -> None:
    archives = {each: _make_archive(made, wheel, each, pythons) for each in architectures}
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "rlhf"},
        "spec": {
            "version": f"v{VERSION}",
            "homepage": HOME,
            "shortDescription": "Watch and control RLHF training jobs",
            "description": "Shows, submits, suspends, resumes, scales and tests RLHFJobs of rlhf-operator.\n",
            "caveats": f"Needs Python {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]} on the PATH.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
                    "uri": f"{FILES}/v{VERSION}/{archive.name}",
                    "sha256": sha256(archive),
                    "bin": "kubectl-rlhf",
                }
                for architecture, archive in archives.items()
            ],
        },
    }
    (made / "rlhf.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def _make_archive(made: Path, wheel: Path, architecture: str, pythons: tuple[str, ...]) -> Path:
    say(f"kubectl rlhf for {architecture}")
    archive = made / f"kubectl-rlhf-{VERSION}-linux-{architecture}.tar.gz"
    with (
        tempfile.TemporaryDirectory(prefix="rlhf-plugin-") as scratch,
        tarfile.open(archive, "w:gz", compresslevel=6) as tar,
    ):
        for file in (*sorted(_PLUGIN.iterdir()), ROOT / "LICENSE"):
            if file.is_file():
                _add(tar, file.name, file.read_bytes(), file.stat().st_mode & 0o755)
        _add_wheel(tar, "any", wheel)
        for python in pythons:
            wheels = Path(scratch) / python
            _download(wheels, python, PLATFORMS[architecture])
            for each in sorted(wheels.iterdir()):
                if not each.name.endswith("-none-any.whl"):
                    _add_wheel(tar, f"cp{python.replace('.', '')}", each)
                elif python == pythons[0]:
                    _add_wheel(tar, "any", each)
    return archive


def _download(wheels: Path, python: str, machine: str) -> None:
    """Of the platforms, of which pip implies none that is older."""
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
        *("--require-hashes", "--requirement", ROOT / "constraints" / "operator-hashes.txt"),
        *(f"--platform=manylinux{glibc}_{machine}" for glibc in _GLIBCS),
        *("--implementation=cp", f"--python-version={python}", "--dest", wheels),
    )


def _add_wheel(tar: tarfile.TarFile, folder: str, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        for name in content.namelist():
            if not name.endswith("/"):
                _add(tar, f"{folder}/{name}", content.read(name), 0o644)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))

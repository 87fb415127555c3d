"""pip's settings of this machine, for the pip inside a build: where it finds packages, and whom it trusts."""

import ast
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

_OPTIONS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "cert",
    "trusted-host",
    "default-timeout",
)


def settings() -> dict[str, str]:
    """By option. The environment's value wins over a file's, as pip has it."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    options: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in _OPTIONS and name.startswith((":env:", "global.", "install.")):
            options[option] = " ".join(ast.literal_eval(value).split())
    return options


def mounts(folder: Path) -> list[str]:
    """`--volume` arguments that give a build these settings and the local folders they name."""
    options = settings()
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{option} = {value}\n" for option, value in options.items()))
    volumes = {str(file): "/etc/pip.conf"} | {path: path for path in _local(options)}
    return [f"--volume={here}:{there}:ro" for here, there in volumes.items()]


def _local(options: dict[str, str]) -> list[str]:
    paths = []
    for option, value in options.items():
        for word in value.split():
            path = Path(urlsplit(word).path)
            if word.startswith(("/", "file://")) and path.exists():
                # An index points at files beside it.
                paths.append(str(path.parent if option.endswith("index-url") else path))
    return paths

"""Fills the picture of docs/concepts/architecture.md: the packages' floors, by the contracts, and who imports whom.

.venv/bin/python tools/make_architecture_picture.py
"""

import re
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
PACKAGES = ("rlhf", "rlhf_operator", "rlhf_trainer", "rlhf_store", "rlhf_api")
_PICTURE = re.compile(r"(<!-- packages -->\n)(?:```mermaid\n.*?```\n)?", flags=re.S)


def floors(container: str) -> list[list[str]]:
    """The modules on each floor of a package, from the top, as its contract of layers has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        c for c in project["tool"]["importlinter"]["contracts"] if c.get("containers") == [container]
    )
    return [re.split(r" [|:] ", layer) for layer in contract["layers"]]


def imports() -> list[tuple[str, str]]:
    """Pairs of packages, of which the first imports the second."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    pairs = {
        (module.split(".")[0], other.split(".")[0])
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    }
    return sorted((above, below) for above, below in pairs if above != below)


def picture() -> str:
    """Mermaid: a box for each package, in it a box for each floor."""
    lines = ["flowchart TB"]
    for package in PACKAGES:
        names = [f"{package}_{number}" for number in range(len(floors(package)))]
        lines.append(f"  subgraph {package}")
        labels = (" · ".join(floor) for floor in floors(package))
        lines += [f'    {name}["{label}"]' for name, label in zip(names, labels, strict=True)]
        lines += [f"    {' ~~~ '.join(names)}", "  end"]
    return "\n".join([*lines, *(f"  {above} --> {below}" for above, below in imports())]) + "\n"


def filled(text: str) -> str:
    """The page with the picture as it is now."""
    return _PICTURE.sub(lambda start: f"{start[1]}```mermaid\n{picture()}```\n", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))

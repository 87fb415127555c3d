"""Virtual environments with no packages but those that a test puts there, without a network."""

import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")


def make_python(folder: Path, *modules: str) -> str:
    """The path of its interpreter; `modules`: installed ones to have there, by links."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in modules:
        origin = getattr(find_spec(name), "origin", None)
        assert origin is not None, f"{name} is not installed"
        place = Path(origin).parent if Path(origin).name == "__init__.py" else Path(origin)
        (packages / place.name).symlink_to(place)
    if "pydantic" in modules:
        (packages / f"pydantic-{distribution('pydantic').version}.dist-info").mkdir()
    return str(folder / "bin" / "python")

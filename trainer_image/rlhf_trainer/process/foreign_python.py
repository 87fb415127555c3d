"""Runs a module of ours by another Python interpreter, which gets our packages by their folders and nothing of what is
installed beside them.

`PYTHON -P foreign_python.py FOLDERS MODULE ARGUMENTS...`; FOLDERS: those of the packages by name, as JSON. Standard
library only.
"""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

PACKAGES = ("rlhf_api", "rlhf_trainer")


def foreign_command(python: str, module: str) -> list[str]:
    """The words in front of the module's arguments."""
    specs = {name: importlib.util.find_spec(name) for name in PACKAGES}
    folders = {name: str(Path(spec.origin).parent) for name, spec in specs.items() if spec and spec.origin}
    return [python, "-P", __file__, json.dumps(folders), module]


def provide_package(name: str, folder: str) -> None:
    """Imports the package from its folder, which is on no path that others are looked up in."""
    spec = importlib.util.spec_from_file_location(
        name, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None, "it is a file of Python"
    assert spec.loader is not None, "it is a file of Python"
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def main() -> None:
    _, folders, module, *_ = sys.argv
    del sys.argv[1:3]
    for name, folder in json.loads(folders).items():
        provide_package(name, folder)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

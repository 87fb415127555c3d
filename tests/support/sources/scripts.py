"""Modules from files that are no part of a package: scripts of tools/ and of examples."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_script(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

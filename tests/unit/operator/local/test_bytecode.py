"""Packages without compiled modules are said where no process would keep them."""

import compileall
import sys
from pathlib import Path

import pytest

from rlhf_operator.local.preflight.bytecode import uncompiled

NONE_KEPT = {"PYTHONDONTWRITEBYTECODE": "1"}


def test_packages_without_compiled_modules_are_said_with_the_command_that_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    line = uncompiled(NONE_KEPT, "heavy")
    assert line is not None
    assert f"run `{sys.executable} -m compileall -q -j 0 {tmp_path}`" in line
    assert uncompiled({}, "heavy") is None
    assert uncompiled(NONE_KEPT, "nowhere") is None
    compileall.compile_dir(tmp_path, quiet=1)
    assert uncompiled(NONE_KEPT, "heavy") is None

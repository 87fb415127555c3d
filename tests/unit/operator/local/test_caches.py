"""Caches whose files are executed are folders that no other user may write or replace."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_operator.local.processes.caches import others_may_write, private_caches
from rlhf_operator.local.processes.temporary import temporary

CACHE = "TORCHINDUCTOR_CACHE_DIR"
STRANGER = 65531


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A /tmp of our own: everybody may write there, and remove only what is theirs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "tmp")
        folder.mkdir()
        folder.chmod(0o1777)
        yield folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", CACHE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_what_torch_compiles_is_kept_where_no_other_user_may_write(
    home: Path, tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    planted = tmp / f"torchinductor_{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    notes = list[str]()
    with temporary(tmp_path, {}, notes.append) as variables:
        folder = Path(variables[CACHE])
        assert folder == home / ".cache/rlhf/inductor"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.exists(), "it is for the next run too"
    assert notes == []


@pytest.mark.parametrize("where", ["shared", "/tmp's", "not made yet", "linked", "below"])
def test_a_cache_that_others_may_write_is_not_used(where: str, home: Path, tmp: Path, tmp_path: Path) -> None:
    """Also where the manifest names it, and whichever of its parents they may write."""
    folder = tmp / "cache"
    if where != "not made yet":
        folder.mkdir()
        folder.chmod(0o777 if where != "/tmp's" else 0o1777)
    if where == "linked":
        (home / "link").symlink_to(folder)
        folder = home / "link"
    if where == "below":
        folder = folder / "mine"
        folder.mkdir(mode=0o700)
    for name in (CACHE, "TRITON_CACHE_DIR", "HF_MODULES_CACHE"):
        notes = list[str]()
        with temporary(tmp_path, {name: str(folder), "TMPDIR": str(tmp)}, notes.append) as variables:
            assert "TMPDIR" not in variables
            used = Path(variables[name])
            assert others_may_write(used.parent) == ""
            assert used.name == name.lower()
        assert not used.parent.exists()
        (line,) = notes
        assert line.startswith(f"{name}: {folder} is not used, since all users may write ")


def test_a_shared_cache_of_hub_models_runs_no_code_of_others(home: Path, tmp: Path) -> None:
    """A cache that a whole group uses: its models are data, but their modules are not taken from there."""
    shared = tmp / "hf"
    shared.mkdir()
    shared.chmod(0o777)
    variables, _ = private_caches({"HOME": str(home), "HF_HOME": str(shared)}, home / "private")
    assert variables["HF_MODULES_CACHE"] == str(home / "private/hf_modules_cache")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_cache_that_another_user_has_made_is_not_used(what: str, tmp: Path) -> None:
    mine, theirs = tmp / "mine", tmp / "theirs"
    mine.mkdir(mode=0o700)
    if what == "folder":
        theirs.mkdir(mode=0o700)
    else:
        theirs.symlink_to(mine)
    os.chown(theirs, STRANGER, STRANGER, follow_symlinks=False)
    assert others_may_write(mine) == ""
    assert others_may_write(theirs / "cache") == f"{theirs} is of user {STRANGER}"


def test_without_a_home_the_cache_goes_with_the_run(tmp: Path, tmp_path: Path) -> None:
    home = tmp / "file"
    home.write_text("")
    variables, notes = private_caches({"HOME": str(home)}, tmp_path)
    assert variables[CACHE] == str(tmp_path / CACHE.lower())
    assert "cannot be made: Not a directory" in notes[0] or "cannot be read: Not a directory" in notes[0]

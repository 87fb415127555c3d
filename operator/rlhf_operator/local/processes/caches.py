"""Folders from which compilers and model libraries run what they find: only such as no other user may write.

They hold shared objects, Python and pickles, which are loaded without a check. Torch's own default is a name in /tmp
that everybody can guess, and so make first.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

_DEFAULTS = {
    "TORCHINDUCTOR_CACHE_DIR": "{cache}/rlhf/inductor",
    "TRITON_CACHE_DIR": "{home}/.triton/cache",
    "VLLM_CACHE_ROOT": "{cache}/vllm",
    "TORCH_EXTENSIONS_DIR": "{cache}/torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "{home}",
    "DG_JIT_CACHE_DIR": "{home}/.deep_gemm",
    "CUDA_CACHE_PATH": "{home}/.nv/ComputeCache",
    "HF_MODULES_CACHE": "{hub}/modules",
}
"""Variables that name such folders, each with the folder that is used without it."""
_OURS = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that is always set: its default is ours."""
_LINKS = 40
"""Symbolic links in one path, as the kernel limits them."""


def private_caches(environ: Mapping[str, str], fallback: Path) -> tuple[dict[str, str], list[str]]:
    """Variables by which no process with `environ` runs what another user may have written, and what to tell the user.
    A folder that others may write is replaced by one below `fallback`."""
    home = environ.get("HOME") or str(Path.home())
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    places = {"home": home, "cache": cache, "hub": environ.get("HF_HOME") or f"{cache}/huggingface"}
    variables, warnings = dict[str, str](), []
    for name, default in _DEFAULTS.items():
        folder = Path(environ.get(name) or default.format(**places)).expanduser().absolute()
        reason = others_may_write(folder)
        if name == _OURS and not reason:
            reason = _cannot_make(folder)
        if reason:
            variables[name] = str(fallback / name.lower())
            warnings.append(
                f"{name}: {folder} is not used, since {reason}; what is compiled is not kept for the next run"
            )
        elif name == _OURS:
            variables[name] = str(folder)
    return variables, warnings


def others_may_write(path: Path) -> str:
    """Reason why another user than root may write in a folder, or put another one in its place; empty if none may. It
    need not exist."""
    shared = ""
    try:
        for each, status in _components(path):
            if status.st_uid not in (0, os.getuid()):
                return f"{each} is of user {status.st_uid}"
            if stat.S_ISLNK(status.st_mode):
                continue
            shared = ""
            if status.st_mode & stat.S_IWOTH:
                shared = f"all users may write {each}"
            elif status.st_mode & stat.S_IWGRP and not _of_user_alone(status.st_gid):
                shared = f"group {status.st_gid} may write {each}"
            # In a sticky folder others may add names, but not replace what is there and not theirs.
            if shared and not status.st_mode & stat.S_ISVTX:
                return shared
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return shared


def _components(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Existing folders and links of a path with their status, from the root on, and of those where the links lead."""
    done, left, links = Path("/"), [*reversed(path.parts[1:])], 0
    yield done, done.lstat()
    while left:
        each = Path(os.path.normpath(done / left.pop()))
        try:
            status = each.lstat()
        except FileNotFoundError:
            return
        yield each, status
        if not stat.S_ISLNK(status.st_mode):
            done = each
            continue
        links += 1
        if links > _LINKS:
            raise OSError(0, "too many symbolic links")
        target = each.readlink()
        done = Path("/") if target.is_absolute() else done
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _cannot_make(folder: Path) -> str:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"it cannot be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _of_user_alone(gid: int) -> bool:
    """True for the group that many systems make for each user, with the user's name and no other member."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not {*group.gr_mem} - {user.pw_name}

"""Workers in another interpreter than the trainer's: what it needs, what of ours it imports, and one error without."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.bare_python import PYDANTIC, make_python

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.interpreter import problem_by_files, problem_by_running
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.turn_text import TurnText
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.process import private_processes

GAMES = "tests.unit.trainer.environments.bare_games"
PAGE = Path(__file__).parents[4] / "docs" / "guides" / "environments.md"
NO_NAMESPACES = asyncio.run(private_processes.why_impossible())
LONG = 60.0


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("bare"), *PYDANTIC)


def played(python: str, name: str = "Bare", **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The opening of an episode in a worker of this interpreter, and the reply to its only turn."""

    async def play() -> tuple[dict[str, Any], dict[str, Any]]:
        pool = WorkerPool(Environment(path=f"{GAMES}:{name}", python=python, settings=settings))
        try:
            await pool.start()
            worker = await pool.free()
            opened = await worker.call({"do": "reset", "episode": 0, "row": {}}, LONG)
            turn = {"do": "step", "episode": 0, **TurnText("yes", "yes")._asdict()}
            return json.loads(opened["text"]), await worker.call(turn, LONG)
        finally:
            await pool.close()

    return asyncio.run(play())


def test_a_class_plays_in_an_interpreter_that_has_pydantic_alone(bare: str) -> None:
    opened, reply = played(bare)
    assert opened["prefix"] == str(Path(bare).parents[1])
    assert not opened["finds"], "the trainer's packages are not there"
    assert opened["hashes"] == "0", "all workers have the same order of sets"
    assert (reply["reward"], reply["done"]) == (1.0, True)


def test_the_foreign_interpreter_imports_the_parts_of_ours_that_the_page_names(bare: str) -> None:
    modules = set(played(bare)[0]["modules"])
    ours = {".".join(name.split(".")[:2]) for name in modules if name.startswith("rlhf") and "." in name}
    named = re.search(r"It imports (.*?) of this product", PAGE.read_text(), re.DOTALL)
    assert named is not None
    assert ours == set(re.findall(r"`([a-z_.]+)`", named[1]))
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    names = {"__main__", "_sysconfigdata__linux_x86_64-linux-gnu", "rlhf_api", "rlhf_trainer", "tests"}
    others = {each for each in foreign - names if not each.startswith("_sysconfigdata")}
    assert others == set(), "pydantic is imported where a tool is called"


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_its_workers_have_namespaces_of_their_own(bare: str) -> None:
    assert played(bare)[0]["space"] != str(Path("/proc/self/ns/pid").readlink())


def test_packages_of_python_path_are_not_there(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_of_the_trainer.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not played(bare, looks_for="only_of_the_trainer")[0]["finds"]


def test_tools_without_transformers_are_one_error_with_its_remedy(bare: str) -> None:
    with pytest.raises(InvalidJob, match=rf"WithTool' has tools, .* `{bare} -m pip install transformers`"):
        played(bare, "WithTool")


class TestUnfit:
    """Interpreters in which no worker can run."""

    @pytest.fixture
    def empty(self, tmp_path: Path) -> str:
        return make_python(tmp_path / "empty")

    @staticmethod
    def refused(python: str) -> str:
        with pytest.raises(InvalidJob) as error:
            played(python)
        (problem,) = error.value.problems
        assert problem.where == "spec.environment.python"
        assert problem.message.endswith(f"; got {python!r}")
        return problem.message

    def test_what_is_no_program_is_refused(self, tmp_path: Path) -> None:
        assert "is not a program here; give the path of a Python interpreter" in self.refused("no/python")
        assert "is not a program here" in self.refused(str(tmp_path))

    @pytest.mark.parametrize("python", ["/bin/false", "/bin/echo"])
    def test_a_program_that_is_no_interpreter_is_refused(self, python: str) -> None:
        assert problem_by_files(python) == "", "only running it tells"
        assert "is no Python interpreter: it did not say its version" in self.refused(python)

    def test_an_interpreter_without_pydantic_is_refused_by_its_files(self, empty: str) -> None:
        reason = f"has no pydantic, which workers need; run `{empty} -m pip install 'pydantic>=2.12'`"
        assert problem_by_files(empty) == reason
        assert reason in self.refused(empty)

    def test_an_interpreter_without_pydantic_says_so_where_its_files_do_not(self, empty: str) -> None:
        (Path(empty).parents[1] / "pyvenv.cfg").write_text(
            f"home = {Path(sys.base_prefix, 'bin')}\ninclude-system-site-packages = true\nversion = 3.11.0\n"
        )
        assert problem_by_files(empty) == ""

    def test_an_old_pydantic_is_refused(self, empty: str) -> None:
        (packages,) = Path(empty).parents[1].glob("lib/python*/site-packages")
        (packages / "pydantic-2.9.2.dist-info").mkdir()
        reason = f"has pydantic 2.9.2; run `{empty} -m pip install 'pydantic>=2.12'`"
        assert problem_by_files(empty) == reason
        (packages / "pydantic-2.9.2.dist-info").rename(packages / "pydantic-2.12.0.dist-info")
        (packages / "pydantic.py").write_text("VERSION = '2.9.2'")
        assert problem_by_files(empty) == ""
        assert problem_by_running(empty) == reason

    @pytest.mark.parametrize("name", ["version", "version_info"])
    def test_an_old_python_is_refused(self, empty: str, name: str) -> None:
        (Path(empty).parents[1] / "pyvenv.cfg").write_text(f"home = /usr/bin\n{name} = 3.9.18\n")
        reason = "is Python 3.9; workers need 3.11 or newer"
        folder = Path(empty).parents[1] / "lib" / "python3.9" / "site-packages"
        folder.mkdir(parents=True)
        assert problem_by_files(empty) == reason
        assert reason in self.refused(empty)

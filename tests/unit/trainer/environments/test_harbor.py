"""Harbor's tasks: folders with an instruction, files, tests and a solution, played in a sandbox that keeps files."""

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trainer.environments.test_pool import NONE
from tests.unit.trainer.environments.test_ready_made import episodes

from rlhf_trainer.environments import sandboxed
from rlhf_trainer.environments.ready.harbor_dockerfile import instructions
from rlhf_trainer.environments.ready.harbor_files import read_task
from rlhf_trainer.environments.ready.harbor_task import HarborTask

DOCKERFILE = """
FROM python:3.12 AS build
COPY missing /app
FROM python:3.12-slim
# a comment
ENV WORD=hello \\
    OTHER="two words"
WORKDIR /app
COPY data/ ./data
COPY ["word.txt", "/srv/given/"]
"""
TESTS = '[ "$(cat answer.txt)" = "HELLO two words" ] && [ -d /logs/verifier ] && r=1 || r=0\necho judged\n'
GIVES = "echo $r > /logs/verifier/reward.txt\n"
SOLUTION = 'echo "$(tr a-z A-Z < data/word.txt) $OTHER" > answer.txt\n'


def make_task(
    folder: Path,
    *,
    dockerfile: str = DOCKERFILE,
    tests: str = TESTS + GIVES,
    solution: str | None = SOLUTION,
    toml: str = "[verifier]\ntimeout_sec = 20.0\n",
) -> Path:
    files = {"task.toml": toml, "instruction.md": "Shout.", "environment/Dockerfile": dockerfile}
    files |= {
        "environment/data/word.txt": "hello\n",
        "environment/word.txt": "given\n",
        "tests/test.sh": tests,
    }
    files |= {"solution/solve.sh": solution} if solution is not None else {}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def call(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


def play(folder: Path, *turns: str, row: dict[str, Any] | None = None, **settings: Any) -> list[Any]:
    row = {"prompt": "Task:", "task": "shout"} if row is None else row
    (made,) = episodes("harbor", (row, turns), folder=str(folder), **settings)
    return made


needs_sandbox = pytest.mark.skipif(bool(NONE), reason=NONE)


@needs_sandbox
def test_commands_of_an_episode_find_the_files_of_those_before_and_the_tests_judge_them(
    tmp_path: Path,
) -> None:
    make_task(tmp_path / "shout")
    shout = "echo HELLO $OTHER > answer.txt"
    opening, listing, shouted, failed, end = play(
        tmp_path,
        call("pwd; cat data/word.txt /srv/given/word.txt; echo $WORD"),
        call(f"{shout}; WORD=lost"),
        call("cat answer.txt; echo $WORD; echo no >&2; exit 3"),
        "Done.",
    )
    assert opening == "Shout."
    assert listing[0] == "/app\nhello\ngiven\nhello\n"
    assert shouted[0] == ""
    assert failed[0] == "HELLO two words\nhello\nno\n\n(exit code 3)"
    assert end[1:] == (1.0, True)


@needs_sandbox
def test_an_episode_whose_files_are_wrong_has_no_reward_whatever_it_plants(tmp_path: Path) -> None:
    """Nor does it see tests or solution, nor the files of another episode."""
    make_task(tmp_path / "shout")
    plant = "mkdir -p /logs/verifier /app/logs/verifier; echo 1 > /logs/verifier/reward.txt"
    *_, planted, listing, end = play(
        tmp_path, call(plant), call(f"ls -d /tests /solution {tmp_path} /app/*"), ""
    )
    assert "Read-only file system" in planted[0]
    assert listing[0].count("No such file") == 3
    assert "/app/data" in listing[0]
    assert "answer.txt" not in listing[0], "that the solution's check has left elsewhere"
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_a_command_that_takes_too_much_is_ended_and_the_episode_goes_on(tmp_path: Path) -> None:
    make_task(tmp_path / "shout")
    flood = "for i in $(seq 9); do head -c 16000000 /dev/zero > flood$i; done; sleep 60"
    _, spun, flooded, printed, freed, end = play(
        tmp_path,
        call("while true; do :; done"),
        call(flood),
        call("yes"),
        call("rm flood*; ls"),
        "",
        seconds=1,
    )
    assert spun[0] == "\n(exit code 152)", "SIGXCPU"
    assert "took too long, or too much" in flooded[0]
    assert printed[0].startswith("y\ny\n")
    assert "(the rest is left out)" in printed[0]
    assert freed[0] == "data\n"
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_what_a_command_removes_or_leaves_running_does_not_hold_up_the_episode(tmp_path: Path) -> None:
    """Its working directory, and a process that has its output, which would end at a limit."""
    make_task(
        tmp_path / "shout", dockerfile=f"{DOCKERFILE}WORKDIR sub\n", tests=f"sleep 60 &\n{TESTS}{GIVES}"
    )
    _, started, removed, listing, end = play(
        tmp_path,
        call("sleep 60 & echo started; exit 3"),
        call("cd /; rm -r /app/sub"),
        call("pwd"),
        "",
        check=False,
    )
    assert started[0] == "started\n\n(exit code 3)"
    assert removed[0] == ""
    assert listing[0] == "/app/sub\n"
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_files_do_not_grow_by_commands_that_end_before_they_are_looked_at(tmp_path: Path) -> None:
    """Tests have room of their own, so that a place which is full is judged, too."""
    make_task(tmp_path / "shout", tests=f"echo more > more; sleep 0.5\n{TESTS}{GIVES}")
    flood = "for i in 1 2 3 4 5; do head -c 16000000 /dev/zero > $0$i; done"
    _, flooded, more, sizes, end = play(
        tmp_path,
        call(flood),
        call(f"mkdir more; cd more; {flood}"),
        call("du -sm . | cut -f 1"),
        "",
        check=False,
    )
    assert "too much" in flooded[0]
    assert "too much" in more[0]
    assert int(sizes[0].split()[0]) <= 80
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_a_tasks_own_files_take_no_room_from_those_of_commands(tmp_path: Path) -> None:
    task = make_task(tmp_path / "shout", solution=f"head -c 16000000 /dev/zero > more\n{SOLUTION}")
    with (task / "environment/data/large").open("wb") as large:
        large.truncate(70 << 20)
    opening, written, end = play(tmp_path, call("head -c 16000000 /dev/zero > more; ls"), "")
    assert opening == "Shout."
    assert written[0] == "data\nmore\n"
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_a_solution_that_is_ended_is_told(tmp_path: Path) -> None:
    toml = "[verifier]\ntimeout_sec = 1\n"
    make_task(tmp_path / "shout", solution="sleep 30\n", toml=toml)
    (refused,) = play(tmp_path)
    assert "it was ended, as it took too long, or too much, and the tests printed" in refused


@needs_sandbox
def test_folders_nested_too_deeply_to_be_watched_are_too_much(tmp_path: Path) -> None:
    make_task(tmp_path / "shout")
    nest = "import os\nfor i in range(2000): os.mkdir('d' * 9); os.chdir('d' * 9)"
    _, nested, end = play(tmp_path, call(f'python3 -c "{nest}"; sleep 1'), "", check=False)
    assert "too much" in nested[0]
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_an_output_is_cut_by_its_bytes_and_a_command_has_a_length_that_is_said(tmp_path: Path) -> None:
    make_task(tmp_path / "shout")
    write = "python3 -c \"print('é' * {}, end='')\""
    _, whole, cut, long, end = play(
        tmp_path, call(write.format(8192)), call(write.format(8193)), call("#" * 131072), "", check=False
    )
    assert whole[0] == "é" * 8192
    assert cut[0] == "é" * 8192 + "\n(the rest is left out)"
    assert "at most 131071 bytes" in long[0]
    assert end[1:] == (0.0, True)


@needs_sandbox
def test_a_check_that_had_no_sandbox_is_made_again_and_a_closed_episode_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task(tmp_path / "shout")
    deep = tmp_path / "shout" / "environment" / "data"
    places = Path(tempfile.mkdtemp())  # as programs may run as another user
    places.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(places))

    async def begin() -> None:
        task = HarborTask(folder=str(tmp_path), seconds=5)
        with monkeypatch.context() as without:
            without.setenv("PATH", str(deep))
            with pytest.raises(OSError, match="choom"):
                await task.reset(task="shout")
        assert await task.reset(task="shout") == "Shout."
        assert len([*places.iterdir()]) == 1
        nest = "import os\nfor i in range(2000): os.mkdir('d'); os.chdir('d')"
        await task.bash(f'python3 -c "{nest}"; mkdir closed; chmod 0 closed')
        await task.close()
        late = HarborTask(folder=str(tmp_path))
        opening = asyncio.create_task(late.reset(task="shout"))
        await asyncio.sleep(0)
        await late.close()
        await opening
        assert not [*places.iterdir()]

    asyncio.run(begin())
    places.rmdir()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"seconds": 0}, "seconds must be a whole number from 1; got 0"),
        ({"seconds": "5"}, "seconds must be a whole number from 1; got '5'"),
        ({"check": "no"}, "check must be true or false; got 'no'"),
        ({"folder": 5}, "folder must be text; got 5"),
        ({"reward": None}, "reward must be text; got null"),
    ],
)
def test_a_setting_that_is_none_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"settings.{problem}"):
        HarborTask(**{"folder": ".", **settings})


@needs_sandbox
def test_limits_are_set_by_no_program_that_a_command_has_left(tmp_path: Path) -> None:
    make_task(tmp_path / "shout", dockerfile="WORKDIR /app\nENV PATH=/app/bin:$PATH\n")
    script = 'echo planted; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    plant = f"mkdir bin; echo '#!/bin/bash\n{script}' > bin/prlimit; chmod +x bin/prlimit; prlimit -- true"
    _, planted, limits, _ = play(tmp_path, call(plant), call("ulimit -f"), "", check=False)
    assert planted[0] == "planted\n"
    assert limits[0] == "16384\n"


def test_a_few_folders_may_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a policy's commands close them, to this process too unless it is root."""
    scan = os.scandir

    def refuse(path: Path) -> Any:
        if path.name.startswith("closed"):
            raise PermissionError
        return scan(path)

    monkeypatch.setattr(sandboxed.os, "scandir", refuse)
    growth = sandboxed._Growth([tmp_path], (0, 0))
    for number in range(5):
        (tmp_path / f"closed{number}").mkdir()
        assert growth.is_too_much() == (number >= 3)


@needs_sandbox
def test_a_task_whose_own_solution_fails_here_is_refused_with_what_was_left_out(tmp_path: Path) -> None:
    dockerfile = f"{DOCKERFILE}RUN apt-get install shouter\n"
    make_task(tmp_path / "shout", dockerfile=dockerfile, solution="shouter hello > answer.txt\n")
    (refused,) = play(tmp_path)
    assert "its own solution has a reward of 0 here" in refused
    assert "RUN apt-get install shouter" in refused
    assert "shouter: command not found" in refused
    assert "judged" in refused
    opening, *_ = play(tmp_path, check=False)
    assert opening == "Shout."


NO_REWARD = {
    "none": ("", "it wrote neither reward.txt nor reward.json to /logs/verifier"),
    "nan": ("echo nan > /logs/verifier/reward.txt", "its reward must be a finite number"),
    "link": ("ln -s /etc/hostname /logs/verifier/reward.txt", "its reward.txt is a link"),
    "folder": (
        "rmdir /logs/verifier; mkdir /app/v; echo 1 > /app/v/reward.txt; ln -s ../app/v /logs/verifier",
        "its reward.txt is a link",
    ),
    "loop": ("ln -s reward.txt /logs/verifier/reward.txt", "Too many levels of symbolic links"),
    "nested": ("printf '[%.0s' {1..10000} > /logs/verifier/reward.json", "is nested too deeply"),
    "late": ("sleep 60", "it took longer than 2 s or its turn may, or too much"),
    "pipe": ("mkfifo /logs/verifier/reward.txt", "is not a regular file"),
    "names": (
        'echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json',
        "its rewards are a, b: set settings.reward",
    ),
}
"""What tests may leave, and what is said of it."""


@needs_sandbox
def test_tests_that_leave_no_reward_end_the_episode_without_one(tmp_path: Path) -> None:
    for name, (gives, _) in NO_REWARD.items():
        seconds = 2 if name == "late" else 20
        make_task(tmp_path / name, tests=TESTS + gives, toml=f"[verifier]\ntimeout_sec = {seconds}\n")
    rows = [({"prompt": "", "task": name}, [""]) for name in NO_REWARD]
    made = episodes("harbor", *rows, folder=str(tmp_path), check=False)
    for (_, end), (name, (_, problem)) in zip(made, NO_REWARD.items(), strict=True):
        assert problem in end[2]
        assert ("judged" in end[2]) == (name != "late")
        assert end[1] is None


@needs_sandbox
def test_files_that_keep_the_tests_from_an_end_have_a_reward_of_0_where_others_were_judged(
    tmp_path: Path,
) -> None:
    """As a reward's program gives: the tests of the task's own solution have ended."""
    tests = f"[ ! -e hang ] || sleep 99; [ ! -e exit ] || exit 1\n{TESTS}{GIVES}"
    make_task(tmp_path / "shout", tests=tests, toml="[verifier]\ntimeout_sec = 3.0\n")
    row = {"prompt": "Task:", "task": "shout"}
    turns = [(row, [call(f"touch {name}"), ""]) for name in ("hang", "exit")]
    for _, _, end in episodes("harbor", *turns, folder=str(tmp_path)):
        assert end[1:] == (0.0, True)
    hung, left = episodes("harbor", *turns, folder=str(tmp_path), check=False)
    assert "it took longer than 3 s or its turn may" in hung[-1][2]
    assert "it wrote neither" in left[-1][2]


@needs_sandbox
def test_a_row_without_a_task_has_one_by_its_seed_and_named_rewards_are_chosen(tmp_path: Path) -> None:
    several = 'echo \'{"style": 0.25, "right": 1}\' > /logs/verifier/reward.json'
    for name in ("a", "b"):
        make_task(tmp_path / name, tests=TESTS + several)
        (tmp_path / name / "instruction.md").write_text(f"Task {name}.")
    rows = [*({"prompt": "", "seed": seed} for seed in range(3)), {"prompt": "", "task": "../a"}]
    settings = {"folder": str(tmp_path), "reward": "style", "check": False}
    *made, unknown = episodes("harbor", *((row, [""]) for row in rows), **settings)
    assert [(opening, end[1]) for opening, end in made] == [(f"Task {name}.", 0.25) for name in "aba"]
    assert "the column task must name a folder of" in unknown[0]


def test_variables_of_a_dockerfile_are_expanded(tmp_path: Path) -> None:
    lines = "ARG HOMES=/srv\nENV NAME a b\nENV PATH=$HOMES/bin:$PATH OWN=${NAME}$UNKNOWN\nWORKDIR $HOMES/x\n"
    task = read_task(make_task(tmp_path, dockerfile=lines))
    path = "/srv/bin:/usr/local/bin:/usr/bin:/bin"
    assert task.variables == {"NAME": "a b", "PATH": path, "OWN": "a b"}
    assert task.directory == "/srv/x"
    lines = "WORKDIR ${HOMES:-/srv}/x\nENV A=${HOMES:+no} B=${HOME:+is$HOME}\n"
    task = read_task(make_task(tmp_path, dockerfile=lines))
    assert (task.directory, task.variables) == ("/srv/x", {"A": "", "B": "is/tmp"})


HERE = "RUN python3 <<EOF && cat <<-'END'\nfrom x import y\nWORKDIR /x\nEOF\nCOPY z /\n\tEND\n"


def test_texts_in_a_dockerfile_are_no_instructions() -> None:
    assert instructions(f"FROM a\nWORKDIR\t/app\n{HERE}ENV A b\n") == [
        ("FROM", "a"),
        ("WORKDIR", "/app"),
        ("RUN", "python3 <<EOF && cat <<-'END'"),
        ("ENV", "A b"),
    ]


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("COPY word.txt /app", "/app/word.txt"),
        ("COPY word.txt /app/data/..", "/app/word.txt"),
        ("COPY data /app/given\nCOPY word.txt given", "/app/given/word.txt"),
        ("COPY data /app/given/in\nCOPY word.txt given", "/app/given/word.txt"),
        ("COPY wor*.txt all", "/app/all"),
        ('COPY --chown=a --chmod=755 ["word.txt", "run"]', "/app/run"),
    ],
)
def test_a_file_is_copied_to_where_docker_puts_it(tmp_path: Path, line: str, target: str) -> None:
    copy = read_task(make_task(tmp_path, dockerfile=f"WORKDIR /app\n{line}\n")).copies[-1]
    assert (copy.target, copy.mode) == (target, 0o755 if "chmod" in line else None)


@needs_sandbox
def test_a_copy_has_the_mode_that_it_is_given(tmp_path: Path) -> None:
    make_task(tmp_path / "shout", dockerfile="COPY --chmod=755 data /app/run\n")
    (tmp_path / "shout/environment/data/word.txt").write_text("#!/bin/sh\necho ran\n")
    assert play(tmp_path, call("run/word.txt"), check=False)[1][0] == "ran\n"


def test_a_link_out_of_the_dockerfiles_folder_is_not_followed(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (task / "environment/data/own").symlink_to("word.txt")
    assert read_task(task)
    (task / "environment/data/other").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="data/other, a link to what is not in"):
        read_task(task)


def test_a_dockerfile_is_read_as_its_last_stage(tmp_path: Path) -> None:
    assert instructions("FROM a\nRUN x\nfrom b\nRUN y \\\n# c\n  && z\n") == [
        ("FROM", "b"),
        ("RUN", "y    && z"),
    ]
    task = read_task(make_task(tmp_path, dockerfile=f"{DOCKERFILE}COPY --from=build /x /y\n"))
    assert (task.directory, task.variables) == ("/app", {"WORD": "hello", "OTHER": "two words"})
    data, word = (tmp_path / "environment" / name for name in ("data", "word.txt"))
    assert task.copies == ((data, "/app/data", None), (word, "/srv/given/word.txt", None))
    assert task.left_out == ("COPY --from=build /x /y",)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ({"toml": "verifier = 1"}, r"task.toml: verifier: .*; got 1"),
        ({"toml": "[["}, "is no Harbor task"),
        ({"toml": "[[steps]]\nname = 'a'"}, "has several steps, which are not supported"),
        ({"toml": "[verifier]\nenv = {KEY = '${KEY}'}"}, "KEY is to be a variable of the host"),
        ({"dockerfile": "COPY nothing /app/"}, "copies nothing, which is not there"),
        ({"dockerfile": "COPY ../task.toml /app/"}, "copies ../task.toml, which is not there"),
        (
            {"dockerfile": "COPY word.txt /etc/word"},
            "puts files in /etc, which a sandbox has of this machine",
        ),
        ({"dockerfile": "WORKDIR /tests"}, "puts files in /tests"),
        ({"dockerfile": "COPY word.txt /app/../../srv/../etc/x"}, "puts files in /etc"),
        ({"dockerfile": "WORKDIR /app\nWORKDIR ../../etc"}, "puts files in /etc"),
        ({"dockerfile": "COPY data /"}, "puts data in /, where a sandbox has no files"),
        ({"dockerfile": "COPY word.txt /word"}, "puts word.txt in /, where a sandbox has no files"),
        ({"dockerfile": "COPY word.txt"}, "'COPY word.txt': must have a source and a target"),
        ({"dockerfile": "COPY --parents data /app/"}, "--parents is not supported"),
        ({"dockerfile": "COPY --chmod=u+x data /app/"}, "Dockerfile: .*chmod=u.x"),
        ({"dockerfile": "COPY [1, 2]"}, "must name files"),
        ({"dockerfile": "COPY <<E /app/x\na\nE"}, "is not supported; put it in a file"),
        ({"dockerfile": "ENV A=it's"}, "Dockerfile: .*ENV A=it's.*: No closing quotation"),
        ({"dockerfile": "WORKDIR"}, "'WORKDIR': has no argument"),
        ({"toml": "[verifier]\ntimeout_sec = inf"}, "verifier.timeout_sec: .*; got Infinity"),
        ({"toml": "[environment]\nmemory_mb = 1000000000000"}, "environment.memory_mb: "),
        ({"toml": f"a = {'[' * 5000}"}, "is no Harbor task"),
    ],
)
def test_a_folder_that_no_sandbox_can_be_a_place_for_is_refused(
    tmp_path: Path, made: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        read_task(make_task(tmp_path, **made))

"""Reads a command line from a shell script: hydra's overrides `a.b=c` and flags `--name value`. Nothing of it is run:
variables that the script sets to plain text are put in, all others are said to be unreadable."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.strict_yaml import documents

from .settings import Configuration, Setting, System

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^${}]*))?\}|([A-Za-z_]\w*))")
_PROGRAM = re.compile(
    r"(?:verl|openrlhf|trl)\.[\w.]+|trl|rl|(?:.*/)?(?:verl|openrlhf|trl)/.*\.py|(?:.*/)?(\w+)\.py"
)
"""A word of the command line that names the program: what stands before it is of its launcher."""
_OF_OPENRLHF = {"train_sft": "sft", "train_dpo": "dpo", "train_rm": "reward"}
_MOST_LINES = 50
"""Lines that a text in quotes may have."""


def read_shell(text: str, source: str) -> Configuration:
    """The configuration of the command line in a script.

    Raises:
        InvalidJob: there is none.
    """
    words = _command(text, source)
    begin = next((i for i, (word, _) in enumerate(words) if _PROGRAM.fullmatch(word)), -1)
    program = words[begin][0] if begin >= 0 else ""
    settings = [*_settings(words[begin + 1 :])]
    if not settings:
        raise InvalidJob([Problem(source, "has no command line with `--name value` or `name=value`")])
    named = words[begin + 1][0] if program == "trl" and begin + 1 < len(words) else Path(program).stem
    algorithm = _OF_OPENRLHF.get(program.rpartition(".")[2], named if named in ALGORITHMS else "")
    return Configuration(_system(program, words), tuple(settings), algorithm)


def _system(program: str, words: list[tuple[str, str]]) -> System:
    if "openrlhf" in program:
        return "OpenRLHF"
    flags = [word for word, _ in words if word.startswith("--")]
    if "verl" in program or not flags:
        return "verl"
    return "prime-rl" if program == "rl" or any("." in flag.partition("=")[0] for flag in flags) else "TRL"


def _command(text: str, source: str) -> list[tuple[str, str]]:
    """The words of the first command that names a program of theirs, or else all words, with their places."""
    commands = [*_commands(text, source)]
    named = (words for words in commands if any(_PROGRAM.fullmatch(word) for word, _ in words))
    return next(named, [word for words in commands for word in words])


def _commands(text: str, source: str) -> Iterator[list[tuple[str, str]]]:
    """The words of each command, but for assignments, whose values are put into the others."""
    variables, words, pending = dict[str, str](), list[tuple[str, str]](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        continues = line.endswith("\\")
        pending.append(line.removesuffix("\\"))
        try:
            parts = shlex.split("\n".join(pending), comments=True)
        except ValueError:  # within quotes that a later line closes
            if len(pending) > _MOST_LINES:
                pending = []
            continue
        pending = []
        given = [_ASSIGNMENT.fullmatch(part) for part in parts if part != "export"]
        if given and all(given) and not words:
            variables |= {match[1]: _expanded(match[2], variables) for match in given if match}
        else:
            words += [(_expanded(part, variables), f"{source}:{number}") for part in parts]
        if not continues:
            yield words
            words = []
    yield words


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """The word with its variables, where they are known, or have a default."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, word)


def _settings(words: list[tuple[str, str]]) -> Iterator[Setting]:
    i = 0
    while i < len(words):
        word, place = words[i]
        i += 1
        if word.startswith("--") and len(word) > 2:
            name, equals, text = word[2:].partition("=")
            values = [text] if equals else []
            while not equals and i < len(words) and not words[i][0].startswith("--"):
                values.append(words[i][0])
                i += 1
            yield _setting(name.replace("-", "_"), values, place)
        elif (match := _OVERRIDE.fullmatch(word)) and not word.startswith("~"):
            yield _setting(match[1], [match[2]], place)


def _setting(name: str, texts: list[str], place: str) -> Setting:
    """A setting with one value, a list of several, or True without any."""
    values = []
    for text in texts:
        own = text.replace("$HOME", "${HOME}")  # which manifests may have
        if "$" in own.replace("${HOME}", "") or "`" in own:
            return Setting(name, None, place, "holds a variable or a command of the shell, which is not run")
        values.append(_value(own))
    return Setting(name, values[0] if len(values) == 1 else values or True, place)


def _value(text: str) -> object:
    try:
        read = documents(text, "")
    except InvalidJob:
        return text
    return read[0] if len(read) == 1 else None if text in ("", "null") else text

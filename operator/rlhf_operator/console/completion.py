"""Completion of a command line, computed from the parser that reads it. Pure."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Values = Callable[[Sequence[str]], "Candidates"]
"""Words of the line so far -> what may stand for the last one."""


@dataclass(frozen=True)
class Candidates:
    """Words with their descriptions, and whether files may stand there too. `joined`: no space follows them."""

    words: tuple[tuple[str, str], ...] = ()
    files: bool = False
    joined: bool = False

    def beginning(self, text: str) -> "Candidates":
        """Those that begin with a text."""
        return replace(self, words=tuple(word for word in self.words if word[0].startswith(text)))


FILES = Candidates(files=True)


def complete(
    parser: argparse.ArgumentParser, line: Sequence[str], values: Mapping[Any, Values]
) -> Candidates:
    """Completions of the last word of a line, which may be empty. `values`: those of positional arguments, by their
    `type`, and of options, by their name."""
    *before, word = line
    state = _State(parser)
    for each in before:
        state.read(each)
    option, equals, value = word.partition("=")
    if equals and (action := state.options.get(option)):
        made = _values(action, line, values).beginning(value)
        return replace(made, words=tuple((f"{option}={each}", about) for each, about in made.words))
    if state.pending is not None and not state.ends_values(word):
        return _values(state.pending, line, values).beginning(word)
    options = Candidates(tuple((name, _about(action)) for name, action in state.options.items()))
    if word.startswith("-") and not state.literal:
        return options.beginning(word)
    positional = state.positional
    return Candidates() if positional is None else _values(positional, line, values).beginning(word)


class _State:
    """The state of a parser after some words."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.literal = False
        """True after `--`: what follows is no option."""
        self._enter(parser)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        actions = parser._actions
        self.options = {name: a for a in actions for name in a.option_strings if a.help != argparse.SUPPRESS}
        self._positionals = [action for action in actions if not action.option_strings]
        self.pending: argparse.Action | None = None
        """The option that the next word is a value of."""

    @property
    def positional(self) -> argparse.Action | None:
        return self._positionals[0] if self._positionals else None

    def ends_values(self, word: str) -> bool:
        """True for an option after one that takes any number of values."""
        return self.pending is not None and self.pending.nargs == "+" and word.startswith("-")

    def read(self, word: str) -> None:
        if self.pending is not None and not self.ends_values(word):
            self.pending = self.pending if self.pending.nargs == "+" else None
        elif word == "--":
            self.literal = True
        elif word.startswith("-") and not self.literal:
            action = self.options.get(word)
            self.pending = action if action is not None and action.nargs != 0 else None
        elif (action := self.positional) is not None:
            if isinstance(action, argparse._SubParsersAction):
                if word in action.choices:
                    self._enter(action.choices[word])
            elif action.nargs not in ("*", "+", argparse.REMAINDER):
                self._positionals.pop(0)


def _values(action: argparse.Action, line: Sequence[str], values: Mapping[Any, Values]) -> Candidates:
    if isinstance(action, argparse._SubParsersAction):
        about = {choice.dest: choice.help or "" for choice in action._choices_actions}
        return Candidates(tuple((name, about[name]) for name in action.choices if name in about))
    if action.choices is not None:
        return Candidates(tuple((str(choice), "") for choice in action.choices))
    key = action.option_strings[-1] if action.option_strings else action.type
    if key in values:
        return values[key](line)
    is_file = action.type is Path or action.metavar in ("FILE", "DIR", "PATH")
    return FILES if is_file or not action.option_strings else Candidates()


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")

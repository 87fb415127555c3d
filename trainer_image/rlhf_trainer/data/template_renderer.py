"""Compiles and renders chat templates in a process of limited time and memory, which this one starts at the first and
keeps."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.host.redaction import without_secrets

COMPILE_SECONDS = 5.0
"""Processor time of compiling a template: the longest that a manifest may give takes 1 s, unless it chains filters."""
RENDER_SECONDS = 0.8
"""Processor time of one rendering: a refusal comes within a second."""
_MODULE = "rlhf_trainer.data.template_worker"


class RefusedByTemplate(ValueError):
    """The template raises for a conversation, or takes more than it may: `over_limit`."""

    def __init__(self, reason: str, *, over_limit: bool = False) -> None:
        super().__init__(reason)
        self.over_limit = over_limit


class NotCompiled(RefusedByTemplate):
    """The template renders no conversation."""


def render_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    arguments: Mapping[str, Any],
    *,
    for_response: bool,
) -> str:
    """As `apply_chat_template`. Raises RefusedByTemplate or NotCompiled, and ValueError where there is no template."""
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        # A class of its own renders by its own code, not by a template that came with a model.
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=for_response, **arguments
        )
        assert isinstance(text, str), "one conversation gives one text"
        return text
    template = tokenizer.get_chat_template(tools=arguments.get("tools"))
    given = {**tokenizer.special_tokens_map, **arguments, "add_generation_prompt": for_response}
    return _worker(os.getpid()).render(template, messages, given)


class _Worker:
    """The process, and a new one after it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._compiled = set[str]()
        """Templates that the process keeps."""
        self._not_compiled = dict[str, RefusedByTemplate]()
        """Templates that are not tried again, as each row would take as long."""

    def render(self, template: str, messages: Sequence[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
        with self._lock:
            if template not in self._compiled and template not in self._not_compiled:
                self._compile(template)
            if refusal := self._not_compiled.get(template):
                raise NotCompiled(str(refusal), over_limit=refusal.over_limit)
            return self._ask(RENDER_SECONDS, [list(messages)], {**arguments, "chat_template": template})

    def _compile(self, template: str) -> None:
        try:
            self._ask(COMPILE_SECONDS, [], {"chat_template": template})
            self._compiled.add(template)
        except RefusedByTemplate as error:
            self._not_compiled[template] = error

    def _ask(self, seconds: float, conversations: list[Any], arguments: Mapping[str, Any]) -> str:
        process = self._process = self._process or _started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([seconds, conversations, arguments], default=str) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # there is no reply then
        line = process.stdout.readline()
        if not line:
            self._process = None
            self._compiled.clear()
            process.stdin.close()
            process.stdout.close()
            if (code := process.wait()) == -signal.SIGPROF:
                reason = f"it takes more than {seconds:g} s of processor time"
                raise RefusedByTemplate(reason, over_limit=True)
            raise RefusedByTemplate(f"the process that renders it has ended ({code})")
        reply = json.loads(line)
        if "limit" in reply:
            raise RefusedByTemplate(reply["limit"], over_limit=True)
        if "error" in reply:
            raise RefusedByTemplate(reply["error"])
        text: str = reply["text"]
        return text


@cache
def _worker(_of: int) -> _Worker:
    """The worker of this process: a fork has none of its parent's."""
    return _Worker()


def _started() -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", _MODULE]
    pipe = subprocess.PIPE
    variables = without_secrets(os.environ)
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", env=variables)

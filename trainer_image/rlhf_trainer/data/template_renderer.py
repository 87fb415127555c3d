"""Renders chat templates in a process of limited time and memory, which this one starts at the first and keeps."""

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

from .template_worker import SECONDS

_MODULE = "rlhf_trainer.data.template_worker"


class RefusedByTemplate(ValueError):
    """The template raises, or takes too much."""


def render_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    arguments: Mapping[str, Any],
    *,
    for_response: bool,
) -> str:
    """As `apply_chat_template`. Raises RefusedByTemplate, and ValueError where there is no template."""
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        # A class of its own renders by its own code, not by a template that came with a model.
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=for_response, **arguments
        )
        assert isinstance(text, str), "one conversation gives one text"
        return text
    template = tokenizer.get_chat_template(tools=arguments.get("tools"))
    given = {
        **tokenizer.special_tokens_map,
        **arguments,
        "chat_template": template,
        "messages": list(messages),
    }
    return _worker(os.getpid()).render({**given, "add_generation_prompt": for_response})


class _Worker:
    """The process, and a new one after it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(self, request: Mapping[str, Any]) -> str:
        with self._lock:
            process = self._process = self._process or _started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request, default=str) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # there is no reply then
            line = process.stdout.readline()
            if not line:
                self._process = None
                process.stdin.close()
                process.stdout.close()
                raise RefusedByTemplate(_end(process.wait()))
        reply = json.loads(line)
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
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")


def _end(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it computes longer than {SECONDS:g} s"
    return f"the process that renders it has ended ({code})"

"""Parts of a trainer that views need: one rank without peers, and what keeps how it was made in place of what works."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_api.job import RLHFJob
from rlhf_trainer.models.pretrained import load


class Made:
    """Keeps what it is called with, in `told`."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.told.append((given, named))
        return SimpleNamespace(cuts=[], told=self.told, config=None, routers=None)


@contextmanager
def instead(owner: Any, *names: str) -> Iterator[Made]:
    made = Made()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, made)
        yield made


@cache
def tokenizer() -> Any:
    return load.load_tokenizer("policy")


def context(job: RLHFJob) -> Any:
    """A trainer's, of one rank that has no peers."""
    ranks = SimpleNamespace(
        agree=lambda decision: decision(),
        device=torch.device("cpu"),
        first=True,
        rank=0,
        world=1,
        share=lambda make: make(),
        any=bool,
        gather=lambda x: [x],
    )
    services = SimpleNamespace(http=None, host="127.0.0.1", roster=None, token="")
    return SimpleNamespace(
        job="job", data={}, spec=job.spec, ranks=ranks, services=services, tokenizer=tokenizer(),
        workdir=Path("no-directory"),
        report=lambda **_: None, stop_requested=lambda: False, checkpoint_requested=lambda: False,
        stop=threading.Event(),
    )  # fmt: skip

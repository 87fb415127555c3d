"""A kind of reward as a contributor adds it, in a copy of the sources: its file, its field, its line in the table."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.sources.contributor import copied, importing
from tests.support.tiny.models import byte_tokenizer

from rlhf_api.contract.run import Process, RunConfig, environment
from rlhf_api.roles import HEALTH, Role
from rlhf_api.sections.reward import RewardKind
from rlhf_trainer.scoring.kinds import KINDS
from rlhf_trainer.scoring.messages import SCORE_ROUTE, pack
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.transport.wire import decode, encode

ROOTS = ("operator", "trainer_image")
TOKEN, READY_S = "token-of-tests", 120
PATTERN = '''"""Rewards of a regular expression: a response in which it is found scores 1, any other 0."""

import re
from collections.abc import Sequence

from rlhf_api.sections.reward import RewardFunction

from .samples import Result, Sample


async def start(_where: str, entry: RewardFunction) -> "Pattern":
    return Pattern(entry.pattern)


class Pattern:
    concurrency = 1

    def __init__(self, pattern: str) -> None:
        self._search = re.compile(pattern).search

    def size(self, count: int) -> int:
        return count

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        return [float(self._search(sample.response) is not None) for sample in samples]
'''
FIELD = "    program: RewardProgram | None = None\n"
LINE = '    "program": program.start,\n'
EDITS = {
    "rlhf_api/sections/reward.py": [(FIELD, f"{FIELD}    pattern: str | None = None\n")],
    "rlhf_trainer/scoring/kinds.py": [
        ("import function_pool, program, service", "import function_pool, pattern, program, service"),
        (LINE, f'{LINE}    "pattern": pattern.start,\n'),
    ],
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The port of a reward role that scores by the new kind."""
    copy = copied(tmp_path / "copy", *ROOTS, edits=EDITS)
    (copy / "trainer_image" / "rlhf_trainer" / "scoring" / "pattern.py").write_text(PATTERN)
    byte_tokenizer().save_pretrained(tmp_path / "policy")
    spec = {
        "algorithm": "grpo",
        "steps": 1,
        "data": {"train": ["prompts.jsonl"]},
        "model": {"policy": str(tmp_path / "policy")},
        "reward": {"functions": [{"function": "known.here:f"}]},
    }
    run = {"job": "job", "workdir": str(tmp_path), "spec": spec}
    known, file = RunConfig.model_validate_json(json.dumps(run)), tmp_path / "run.json"
    spec["reward"] = {"functions": [{"name": "digits", "pattern": "[0-9]", "weight": 2.0}]}
    file.write_text(json.dumps(run))
    place = Process(Role.REWARD, 0, free_port(), "127.0.0.1", "127.0.0.1:1")
    given = environment(known, place, config_file=str(file), termination_log=str(tmp_path / "end"))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlhf_trainer.roles.reward"],
            env={**importing(*(copy / root for root in ROOTS)), **given, "RLHF_TOKEN": TOKEN},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(place.port):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield place.port
    finally:
        process.kill()
        process.wait(60)


def _answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{HEALTH}", timeout=5):
        return True
    return False


def test_the_reward_role_scores_by_it(server: int) -> None:
    tokenizer = byte_tokenizer()
    pairs = [(tokenizer("2 + 3 =")["input_ids"], tokenizer(text)["input_ids"]) for text in (" 5", " five")]
    message = pack(Sequences.pack(pairs), [{"prompt": "2 + 3 ="}] * 2, part="functions")
    request = urllib.request.Request(
        f"http://127.0.0.1:{server}{SCORE_ROUTE}", encode(*message), {"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        arrays, report = decode(reply.read())
    assert arrays["scores"].tolist() == [2.0, 0.0]
    assert report["parts"]["digits"]["failed"] == 0


def test_each_kind_of_the_manifest_has_its_scorer() -> None:
    assert list(KINDS) == list(RewardKind.model_fields)

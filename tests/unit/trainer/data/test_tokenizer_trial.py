"""A tokenizer's file of a stranger: what never ends or fills the memory is refused before a row is read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny.models import byte_tokenizer
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_trainer.commands.inspect_data import problems_of
from rlhf_trainer.data.tokenizer_trial import tokenizer_problem


def split(pattern: str) -> dict[str, Any]:
    made = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": made}


def replaced(times: int) -> dict[str, Any]:
    each = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    return {"normalizer": {"type": "Sequence", "normalizers": [each] * times}}


HOSTILE = {
    "a pattern that takes minutes": (
        split("(?:a|a){20}b|a"),
        "computes longer than .* 2 s for 13020 characters",
    ),
    "a pattern beyond the library's limit": (split("(a+)+$"), "cannot be used: .*retry-limit"),
    "replacements of replacements": (replaced(30), "takes more than 4096 MiB|computes longer than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tokenizer_that_would_never_end_is_refused(tmp_path: Path, name: str) -> None:
    changes, words = HOSTILE[name]
    byte_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    assert tokenizer_problem(file) == ""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    given = (f"spec.model.policy={tmp_path}", f"spec.data.train=[{tmp_path}/rows.jsonl]")
    spec = job("spec.algorithm=sft", "spec.ppo={}", *given).spec
    ((problem,), _) = problems_of(RunConfig(job="job", spec=spec, workdir=str(tmp_path)))
    assert problem.where == "spec.model.policy"
    assert re.search(f"tokenizer.json {words}", problem.message), problem.message


def test_what_the_library_refuses_is_left_to_who_loads_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    assert tokenizer_problem(tmp_path / "tokenizer.json") == ""

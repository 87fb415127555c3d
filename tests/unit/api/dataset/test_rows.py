"""Data rows: the first bad one is named by file, line and field."""

import json
from pathlib import Path

import pytest

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.row_files import RowFile
from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import RowKind


def read_rows(path: str, kind: RowKind) -> list[Row]:
    return list(RowFile(Path(path), kind))


GOOD = '{"prompt": "p", "answer": "a", "pos_answers": ["x"], "neg_answers": ["y"], "id": 7, "margin": 1}'
BAD: dict[RowKind, list[tuple[str, str]]] = {
    "responses": [
        ('{"prompt": "p"', ":2: is not valid JSON"),
        ('{"prompt": "p"}', ":2: answer: is missing; the row has 'prompt'"),
        ('{"prompt": "p", "anwser": "a"}', "; rename 'anwser'"),
        ("{}", ":2: prompt: is missing; the row has no fields"),
        ('{"prompt": "p", "answer": ""}', ":2: answer: "),
        ('{"messages": "p"}', ":2: messages: must be a list; got 'p'"),
        ('{"prompt": "p", "answer": [{"role": "user", "content": "a"}]}', ":2: answer: the first and"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "end with the assistant; got user"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "must not begin with the assistant"),
        ('{"messages": [{"content": "a"}]}', ":2: messages.0.role: is missing"),
    ],
    "prompts": [
        ('{"prompt": 3}', ":2: prompt: "),
        ('{"prompt": null}', "got null"),
        ('{"prompt": ["p"]}', ":2: prompt.0: must be an object; got 'p'"),
        ('["p"]', ":2: a row must be an object; it is a list"),
        ('{"prompt": ' + "9" * 5000 + "}", ":2: cannot be read: Exceeds the limit"),
        ('{"prompt": ' + "[" * 100000 + "}", ":2: "),
        ('{"prompt": []}', ":2: prompt: must have at least 1 item"),
        ('{"prompt": [{"role": "user"}]}', ":2: prompt.0.content: is missing; the message has 'role'"),
        ('{"prompt": [{"role": "user", "contents": "a"}]}', "; rename 'contents'"),
        ('{"prompt": [{"role": "user", "content": 3}]}', ":2: prompt.0.content: must be a valid string"),
        ('{"prompt": ["Hi"]}', ":2: prompt.0: "),
        ('{"prompt": [{"role": "user", "content": null}]}', ":2: prompt.0: content must be text"),
        (
            '{"prompt": "p", "n": [1, 1e999]}',
            ":2: cannot be read: a number is beyond the largest one, 1.8e+308; got 1e999",
        ),
        ('{"prompt": "p", "n": NaN}', ":2: cannot be read: NaN is no number of JSON; write null"),
        ('{"prompt": "p", "n": -Infinity}', "-Infinity is no number of JSON; write null"),
        (
            '{"prompt": "p", "x": {"a": 1, "b": 2, "a": 3}}',
            ":2: cannot be read: an object has the key 'a' twice, and only one can be meant; got 1 and 3",
        ),
        (r'{"prompt": "a \ud83d"}', ":2: prompt: must be Unicode text, without half of a surrogate pair"),
        (
            r'{"prompt": [{"role": "user", "content": "\ud83d"}]}',
            ":2: prompt.0.content: must be Unicode text",
        ),
        ('{"prompt": [{"role": "assistant", "content": "a"}]}', "must not be the assistant's"),
    ],
    "pairs": [
        ('{"prompt": "p", "pos_answers": ["a", "b"], "neg_answers": ["c"]}', "equally long; got 2 and 1"),
        ('{"prompt": "p", "pos_answers": [], "neg_answers": []}', ":2: pos_answers: "),
        ('{"prompt": "p", "pos_answers": "a", "neg_answers": ["b"]}', ":2: pos_answers: "),
        ('{"prompt": "p", "pos_answers": ["a"], "neg_answers": [""]}', ":2: neg_answers.0: "),
        ('{"prompt": "p", "chosen": "a"}', ":2: rejected: is missing; the row has 'prompt', 'chosen'"),
        (
            '{"prompt": "p", "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]}',
            ":2: chosen: must be text or one message of the assistant; got 2 messages",
        ),
    ],
    "graded": [
        ('{"prompt": "p", "chosen": "a", "rejected": "b"}', ":2: margin: is missing; the row has 'prompt'"),
        ('{"prompt": "p", "pos_answers": ["a"], "neg_answers": ["b"]}', ":2: margin: is missing; the row"),
        (
            '{"prompt": "p", "chosen": "a", "rejected": "b", "margin": "2"}',
            ":2: margin: must be a valid number",
        ),
        (
            '{"prompt": "p", "chosen": "a", "rejected": "b", "margin": null}',
            ":2: margin: must be a valid number",
        ),
        ('{"prompt": "p", "chosen": "a", "rejected": "b", "margin": NaN}', "NaN"),
        ('{"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1e999}', "1e999"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [pytest.param(kind, *case, id=case[1]) for kind, cases in BAD.items() for case in cases],
)
def test_bad_rows(tmp_path: Path, kind: RowKind, row: str, words: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{GOOD}\n{row}\n{GOOD}\n")
    with pytest.raises(InvalidJob) as caught:
        read_rows(str(file), kind)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}")
    assert words in str(problem)
    assert len(str(problem)) < len(str(file)) + 300


def test_json_lists_count_from_zero(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(f"[{GOOD},\n {{}}]")
    with pytest.raises(InvalidJob, match=r"rows.json\[1\]: prompt: is missing"):
        read_rows(str(file), "prompts")
    file.write_text(f"[{GOOD},\n {GOOD}")
    with pytest.raises(InvalidJob, match=r"rows.json:2: is not valid JSON"):
        read_rows(str(file), "prompts")


@pytest.mark.parametrize("text", ["", "\n\n", "[]", "\ufeff"])
def test_files_without_rows(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJob, match="has no rows"):
        read_rows(str(file), "prompts")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xff"}')
    for name, words in (("no", "No such file"), ("latin", "is not UTF-8 text"), (".", "Is a directory")):
        with pytest.raises(InvalidJob, match=words):
            read_rows(str(tmp_path / name), "prompts")


def test_text_is_kept_as_it_is(tmp_path: Path) -> None:
    """Byte order mark, CRLF, blank lines; line separators that JSON allows in a string split no row."""
    prompt = "a\u2028b\u0085c\x0bd \U0001f600"
    file = tmp_path / "rows.jsonl"
    rows = [json.dumps({"prompt": prompt, "more": [1]}, ensure_ascii=False), '{"prompt": "z"}']
    file.write_bytes(("\ufeff" + "\r\n\r\n".join(rows)).encode())
    first, second = read_rows(str(file), "prompts")
    assert first.model_dump() == {"prompt": prompt, "more": [1]}
    assert second.model_dump() == {"prompt": "z"}


USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("kind", "row", "chat"),
    [
        ("prompts", {"prompt": "q"}, False),
        ("prompts", {"prompt": [USER]}, True),
        ("prompts", {"prompt": "q", "messages": [USER]}, False),
        ("responses", {"prompt": "q", "answer": "a"}, False),
        ("responses", {"prompt": "q", "answer": "a", "messages": "of another program"}, False),
        ("responses", {"messages": [USER, ASSISTANT]}, True),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b"}, False),
        ("pairs", {"prompt": "q", "pos_answers": [[ASSISTANT]], "neg_answers": ["b"]}, True),
    ],
)
def test_text_and_conversations(kind: RowKind, row: dict[str, object], chat: bool) -> None:
    made = checked_row(row, kind, lambda: "row")
    assert made.is_conversation is chat
    assert made.texts[0] == "q"
    assert made.model_dump() == row, "functions get the row as it was written"

"""The page with the data of runs in one file, which asks nobody for anything."""

import json
import re

import pytest
from tests.support.run_folders import append_lines, write_run

from rlhf_operator import cli
from rlhf_operator.page.serve import export, static_files

PAGE = """<head><meta charset="utf-8"><link rel="icon" href="icon.svg"><link rel="stylesheet" href="page.css">
<script type="module" src="page.js"></script></head><body><div id="page"></div></body></html>"""
SAMPLE = {
    "step": 1,
    "prompt_id": "0/1",
    "prompt": "p",
    "response": "</script><script>bad()</script>",
    "score": 1.0,
}


@pytest.fixture(autouse=True)
def built(tmp_path, monkeypatch):
    folder = tmp_path / "static"
    folder.mkdir()
    files = {"index.html": PAGE, "page.css": "p{}", "page.js": "run()", "icon.svg": "<svg/>"}
    for name, content in files.items():
        (folder / name).write_text(content)
    monkeypatch.setattr(export, "find_assets", lambda: static_files.find_assets(folder))
    return folder


@pytest.fixture
def runs(tmp_path):
    for name in ("a", "b"):
        folder = write_run(
            tmp_path / "runs" / name, name=name, steps=[{"step": 1, "reward_mean": 1, "seconds": 2}]
        )
        append_lines(
            folder / "samples.jsonl",
            [{**SAMPLE, "weight_version": 0, "prompt_length": 1, "response_length": 1}],
        )
    return tmp_path / "runs"


def run(runs, folder, capsys):
    code = cli.main(["ui", str(runs), "--export", str(folder)])
    return code, "".join(capsys.readouterr())


def test_one_file_has_the_page_and_the_replies(runs, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed = run(runs, out, capsys)
    assert (code, printed) == (0, f"2 runs in {out}/index.html\n")
    assert [file.name for file in out.iterdir()] == ["index.html"]
    text = (out / "index.html").read_text()
    assert "<style>p{}</style>" in text
    assert '<script type="module">run()</script>' in text
    assert not re.search(r'(src|href)="(?!data:)', text), "it loads something"
    replies = json.loads(re.search(r'id="export">(.*?)</script>', text)[1])["replies"]
    first, second = [each["id"] for each in replies["/runs"]["runs"]]
    parts = ["", "/marks", "/alarms", "/metrics", "/metrics?names=*", "/samples"]
    assert {f"/runs/{id}{part}" for id in (first, second) for part in parts} <= replies.keys()
    assert replies[f"/runs/{first}/scores?step=1&bins=20"]["counts"] == [1]
    assert replies[f"/runs/{first}/timeline?step=1"]["spans"]
    assert f"/compare?a={second}&b={first}" in replies
    assert not any(path.endswith("/tokens") for path in replies), "there is no store"


def test_a_response_ends_no_script_of_it(runs, tmp_path, capsys):
    run(runs, tmp_path / "out", capsys)
    text = (tmp_path / "out" / "index.html").read_text()
    assert "bad()" in text
    assert text.count("<script") == text.count("</script>") == 2


def test_a_folder_that_holds_something_stays_as_it_is(runs, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    code, printed = run(runs, tmp_path / "notes", capsys)
    assert (code, "is there already; name another folder" in printed) == (2, True)
    assert [file.name for file in (tmp_path / "notes").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("page.js", "a('</script>')", "the built page has no script that can be exported"),
        ("page.css", "", "the built page has no style that can be exported"),
        ("index.html", None, "this installation has no page; `make page` builds it"),
    ],
)
def test_a_page_that_cannot_be_inlined_is_one_error(built, runs, tmp_path, capsys, name, content, message):
    if content is None:
        (built / name).unlink()
    else:
        (built / name).write_text(content)
    code, printed = run(runs, tmp_path / "out", capsys)
    assert (code, message in printed, printed.count("\n")) == (1, True, 1)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_runs_is_one_error(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    code, printed = run(tmp_path / "empty", tmp_path / "out", capsys)
    assert (code, "holds no run" in printed) == (2, True)

"""The timeline of a step from the trainer's record, and the trace that Perfetto opens."""

import json

import pytest
from tests.support.run_folders import append_lines, write_run

from rlhf_api.contract.timeline import FILE, Span, StepTimeline
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.answers.trace import list_events
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.refusal import Refusal

SPANS = (
    Span("trainer", 0, "wait for responses", 0.0, 4.0),
    Span("trainer", 0, "train_policy", 4.5, 9.0),
    Span("generator", "generator-1", "generate", 0.0, 2.0),
    Span("generator", "generator-1", "generate", 6.0, 10.0),
    Span("trainer", 1, "train_policy", 4.0, 9.0),
    Span("generator", "generator-0", "generate", 0.0, 4.0),
)


def times(step: int, spans=SPANS) -> StepTimeline:
    return StepTimeline(step=step, time=1000.0 + 20 * step, seconds=10.0, spans=spans)


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, steps=[{"step": step, "seconds": 10.0, "train_seconds": 5.0} for step in (1, 2, 3)])
    append_lines(tmp_path / FILE, [times(step).model_dump() for step in (2, 3)])
    return tmp_path


def ask(folder, path, **query):
    catalog = Catalog([folder])
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/{path}", query)


def test_a_step_has_a_row_of_each_process_with_its_bubbles(folder):
    timeline = ask(folder, "timeline", step="3")
    rows = [
        (span["who"], span["name"], span["start"], span["end"])
        for span in timeline["spans"]
        if span["who"] in ("trainer rank 0", "generator-1")
    ]
    assert rows == [
        ("trainer rank 0", "wait for responses", 0.0, 4.0),
        ("trainer rank 0", "other", 4.0, 4.5),
        ("trainer rank 0", "train_policy", 4.5, 9.0),
        ("trainer rank 0", "other", 9.0, 10.0),
        ("generator-1", "generate", 0.0, 2.0),
        ("generator-1", "wait for work", 2.0, 6.0),
        ("generator-1", "generate", 6.0, 10.0),
    ]
    idle = {"trainer rank 0": 4.0, "trainer rank 1": 0.0, "generator-0": 6.0, "generator-1": 4.0}
    assert timeline["idle"] == idle
    assert list(timeline["idle"]) == list(idle), "ranks first, each role in order"
    assert timeline["recorded"]


def test_a_step_without_a_record_has_its_parts(folder):
    timeline = ask(folder, "timeline", step="1")
    assert (timeline["recorded"], timeline["spans"][0]["name"]) == (False, "train")


@pytest.mark.parametrize("line", ['{"step": 3, "spans": [["a"]]}', '{"step": 3, "sp', "[]", '{"step": 3}'])
def test_a_record_that_is_none_is_passed_over(folder, line):
    (folder / FILE).write_text(line + "\n")
    assert not ask(folder, "timeline", step="3")["recorded"]


def test_a_trace_has_the_steps_one_after_the_other(folder):
    trace = ask(folder, "trace", step="3", count="2")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["step"]: event["ts"] for event in spans if event["cat"] == "steps"} == {
        2: 0,
        3: 20e6,
    }
    of_training = [event for event in spans if event["name"] == "train_policy"]
    assert [(event["ts"], event["dur"]) for event in of_training] == [
        (4.5e6, 4.5e6),
        (4e6, 5e6),
        (24.5e6, 4.5e6),
        (24e6, 5e6),
    ]
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    with pytest.raises(Refusal, match="no timeline of step 1"):
        ask(folder, "trace", step="1")
    with pytest.raises(Refusal, match="count must be a whole number from 1 to 1000"):
        ask(folder, "trace", count="0")


def test_a_trace_names_each_process_and_thread_once():
    events = list(list_events([times(1), times(2)]))
    named = [(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"]
    assert named == [
        ("process_name", "steps"),
        ("thread_name", "steps"),
        ("process_name", "trainer"),
        ("thread_name", "trainer rank 0"),
        ("process_name", "generator"),
        ("thread_name", "generator-1"),
        ("thread_name", "trainer rank 1"),
        ("thread_name", "generator-0"),
    ]
    places = {
        event["args"]["name"]: (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name"
    }
    assert len(set(places.values())) == len(places)
    assert places["trainer rank 0"][0] == places["trainer rank 1"][0]

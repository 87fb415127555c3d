"""Lists and watches are read object by object, whatever their objects hold and however their bytes come."""

import asyncio
import json
import tracemalloc

import pytest

from rlhf_operator.kube.api import Api
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.kube.pages import Lines, Page

ODD = [
    {"kind": "RLHFJob", "note": '"items":[{"a":1}]', "n": 1e-6, "big": 10**20},
    {"kind": "RLHFJob", "note": "é€😀\\ ] } ,", "nested": [[], {}, None, True]},
    {},
]
LIST = {
    "apiVersion": "v1",
    "items": ODD,
    "kind": "List",
    "metadata": {"continue": "x]", "resourceVersion": "7"},
}
TYPED = {"kind": "List", "metadata": {"resourceVersion": "7"}, "items": ODD}


def read(text: bytes, step: int, keep=dict):
    page = Page(keep)
    for start in range(0, len(text), step):
        page.feed(text[start : start + step])
    return page.end()


@pytest.mark.parametrize(
    "body", [LIST, TYPED, {**LIST, "items": []}, {**LIST, "items": None}, {"resources": []}]
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_list_is_read_as_json_reads_it(body, step):
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(body, ensure_ascii=False, separators=separators).encode()
        assert read(text, step) == body


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b'{"items":[{"a":1}', b'{"items":[{"a":}]}', b'{"items":[1 2]}x']
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises((ValueError, TypeError)):
        read(text, 5)


def test_only_one_object_of_a_page_is_whole_in_memory():
    large = {"name": "a", "spec": [{}] * 50_000}
    text = json.dumps({"items": [large] * 8}).encode()

    def peak(read_it) -> int:
        tracemalloc.start()
        read_it()
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    trimmed_peak = peak(lambda: read(text, 1 << 16, lambda item: {"name": item["name"]}))
    assert trimmed_peak < peak(lambda: json.loads(text)) / 3


def test_an_event_of_a_watch_is_shortened_if_it_is_long():
    events = [
        {"type": "ADDED", "object": {"name": name, "spec": "x" * size}}
        for name, size in (("a", 9), ("b", 90_000))
    ]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    lines = Lines(lambda body: {"name": body["name"]})
    given = (
        b"".join(lines.feed(text[start : start + 1_000]) for start in range(0, len(text), 1_000))
        + lines.end()
    )
    first, second = map(json.loads, given.splitlines())
    assert first == events[0]
    assert second == {"type": "ADDED", "object": {"name": "b"}}


def test_a_page_that_the_server_does_not_answer_in_time_is_asked_for_in_smaller_ones():
    limits = list[int]()

    class Slow(Api):
        def __init__(self) -> None:
            pass

        async def _call(self, *_, query, **__):
            limits.append(limit := int(query["limit"]))
            if limit > 5:
                raise ApiError(0, "TimeoutError", "no answer")
            more = {} if "continue" in query else {"continue": "next"}
            return {"items": [{"metadata": {"name": str(len(limits))}}], "metadata": more}

    async def names() -> list[str]:
        return [body["metadata"]["name"] async for body in Slow().list("RLHFJob")]

    assert asyncio.run(names()) == ["2", "3"]
    assert limits == [20, 5, 5]

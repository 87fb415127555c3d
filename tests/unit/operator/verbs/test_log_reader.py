"""Lines of a log, however the pieces come and however often the connection is cut."""

import pytest

from rlhf_operator.verbs.log_reader import Reading

STAMP = "2026-01-01T12:00:00.5Z"


def read(log: str | bytes) -> list[str]:
    reading = Reading()
    assert reading.connect() is None
    return reading.take(log.encode() if isinstance(log, str) else log) + reading.end()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_do_not_depend_on_the_pieces(size: int) -> None:
    log = f"{STAMP} first\n{STAMP} \n{STAMP} späť\n{STAMP} no end".encode()
    reading = Reading()
    texts = [text for start in range(0, len(log), size) for text in reading.take(log[start : start + size])]
    assert texts == ["first", "", "späť"]
    assert reading.end() == ["no end"]
    assert reading.end() == []


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b" 10%|#    \r 50%|##   \r100%|#####\n", "100%|#####"),
        (b"windows\r\n", "windows"),
        (b"\xff\xfe bytes\n", "\ufffd\ufffd bytes"),
        (b"a\tb\x1b[32m\n", "a\tb\x1b[32m"),
    ],
)
def test_a_line_as_a_terminal_would_show_it(raw: bytes, text: str) -> None:
    assert read(STAMP.encode() + b" " + raw) == [text]


def test_a_line_without_a_time_is_whole() -> None:
    assert read("unable to retrieve container logs\n") == ["unable to retrieve container logs"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    reading = Reading()
    assert reading.take(b"x" * (1 << 20)) == []
    assert [len(text) for text in reading.take(b"y")] == [(1 << 20) + 1]


def test_every_line_once_wherever_the_connection_is_cut() -> None:
    """Times of one second, of other zones and digits, one twice in a row, one that goes back."""
    stamps = [
        "2026-01-01T11:59:59.999999999Z",
        "2026-01-01T12:00:00Z",
        "2026-01-01T13:00:00.000000001+01:00",
        "2026-01-01T12:00:00.09Z",
        "2026-01-01T12:00:00.1Z",
        "2026-01-01T12:00:00.1Z",
        "2026-01-01T12:00:00.1Z",
        "2026-01-01T12:00:00.2Z",
    ]
    lines = [f"{stamp} {number}\n" for number, stamp in enumerate(stamps)]
    log = "".join(lines).encode()
    for at in range(len(log)):
        reading = Reading()
        before = reading.take(log[:at])
        since = reading.connect()
        assert (since is None) == (not before)
        assert before + reading.take(log) == [str(number) for number in range(len(lines))], at


def test_a_clock_that_goes_back_loses_no_line() -> None:
    earlier = f"2026-01-01T11:00:00Z earlier\n{STAMP} later\n"
    assert read(f"{STAMP} first\n{earlier}") == ["first", "earlier", "later"]

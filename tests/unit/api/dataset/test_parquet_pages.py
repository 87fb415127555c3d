"""Parquet of a bucket: what would decode to far more than its file has is refused before anything is decoded."""

import io
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_api.host import parquet_pages
from rlhf_api.host.parquet_pages import check_inflation

COUNT = 1 << 20
SMALL = 1 << 20


def zeros(count: int = COUNT) -> pa.Array:
    return pa.array(memoryview(bytes(4 * count)).cast("i"), pa.int32())


def table_file(values: pa.Array, **options: Any) -> bytes:
    out = io.BytesIO()
    given = {"compression": "zstd", "use_dictionary": False, **options}
    pq.write_table(pa.table({"a": values}), out, **given)
    return out.getvalue()


def checked(data: bytes) -> None:
    with pq.ParquetFile(io.BytesIO(data)) as file:
        check_inflation(file.metadata, io.BytesIO(data), len(data))


def varint(number: int, length: int = 0) -> bytes:
    """In Thrift's compact protocol, with zeros at its end up to a length."""
    number, out = number << 1, bytearray()
    while number >> 7 or len(out) + 1 < length:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def with_small_sizes(data: bytes) -> bytes:
    """The file with a footer that says its columns decode to 1,000 bytes each."""
    (length,) = struct.unpack("<I", data[-8:-4])
    footer, metadata = data[-8 - length : -8], pq.ParquetFile(io.BytesIO(data)).metadata
    group = metadata.row_group(0)
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        assert varint(size) in footer
        footer = footer.replace(varint(size), varint(1000, len(varint(size))))
    return data[: -8 - length] + footer + data[-8:]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "SMALL", SMALL)


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
def test_tables_that_decode_to_little_are_read(pages: str) -> None:
    lists = pa.array([[1, 2], [], [3]], pa.list_(pa.int32()))
    for values in (zeros(1000), lists, pa.array(["a", None, "b"])):
        checked(table_file(values, data_page_version=pages))
    checked(table_file(pa.array(range(4 * COUNT), pa.int64()), data_page_version=pages))


BOMBS = {
    "zeros": (table_file(zeros()), "would take more than 1 MiB"),
    "zeros, in pages of version 2": (
        table_file(zeros(), data_page_version="2.0"),
        "would take more than 1 MiB",
    ),
    "zeros, of which the footer says that they are few": (
        with_small_sizes(table_file(zeros())),
        "would take more than 1 MiB",
    ),
    "nulls": (table_file(pa.nulls(COUNT, pa.int32())), "would take more than 1 MiB"),
    "empty lists": (table_file(pa.array([[]] * COUNT, pa.list_(pa.int32()))), "would take more than 1 MiB"),
    "one long text in a dictionary": (
        table_file(pa.array(["a" * 9999] * 999), use_dictionary=True),
        "column a is not stored plainly",
    ),
    "differences of 0": (
        table_file(zeros(), column_encoding={"a": "DELTA_BINARY_PACKED"}),
        "column a is not stored plainly",
    ),
    "lists of lists": (
        table_file(pa.array([[[1]]], pa.list_(pa.list_(pa.int32())))),
        "column a.list.element.list.element is not stored plainly",
    ),
    "nulls of many bytes": (
        table_file(pa.nulls(3, pa.binary(9999))),
        "column a is not stored plainly",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str) -> None:
    data, words = BOMBS[name]
    assert len(data) < 40_000
    with pytest.raises(ValueError, match=words):
        checked(data)


def header(*fields: bytes) -> bytes:
    return b"".join(fields) + b"\0"


PAGE = (b"\x15\x00", b"\x15\x08", b"\x15\x08", b"\x2c\x15\x02\x15\x00\x00")
"""Fields 1, 2, 3 and 5: kind, sizes of 4, and the header of a page with one plain value."""


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (header(*PAGE[:3], b"\x0a\x15\x10", PAGE[3]), "cannot be read"),
        (header(*PAGE[:2], b"\x05\x04\xff\xff\xff\xff\x0f", *PAGE[2:]), "cannot be read"),
        (header(PAGE[0], b"\x15\xfe\xff\xff\xff\x7f", *PAGE[2:]), "without its size"),
        (header(PAGE[0], b"\x15\x07", *PAGE[2:]), "without its size"),
        (header(*PAGE[:2], b"\x15" + b"\xff" * 12, PAGE[3]), "cannot be read"),
        (header(*PAGE[:3], b"\x29\x15"), "cannot be read"),
        (b"\x1c" * 200_000, "cannot be read"),
        (b"\x11" * 200, "cannot be read"),
        (header(*PAGE, b"\x18" + b"\xff" * 9 + b"\x7f"), "ends within"),
        (header(*PAGE, b"\x18\xf0\xff\x03" + bytes(65520)), "ends within"),
        (PAGE[0], "ends within"),
    ],
    ids=[
        "long form",
        "a field twice",
        "beyond 31 bits",
        "negative",
        "no number",
        "a list",
        "deep",
        "many",
        "beyond 64 bits",
        "long",
        "cut",
    ],
)
def test_headers_that_readers_may_read_in_another_way_are_refused(page: bytes, words: str) -> None:
    good = header(*PAGE) + bytes(4)
    assert [tuple(each) for each in parquet_pages._pages(io.BytesIO(good), 0, len(good), "a")] == [(4, 1, 6)]
    with pytest.raises(ValueError, match=words):
        list(parquet_pages._pages(io.BytesIO(page), 0, len(page), "a"))


class Footer:
    """Of a file with columns of one place, as pyarrow gives it."""

    num_row_groups, data_page_offset = 1, 0
    path_in_schema, physical_type, has_dictionary_page = "a", "INT32", False

    def __init__(self, columns: int, size: int) -> None:
        self.num_columns, self.total_compressed_size = columns, size

    def row_group(self, _: int) -> "Footer":
        return self

    column = row_group


def test_the_fields_of_headers_count_for_the_time_that_they_take() -> None:
    """They take a byte each: those of a file of a few megabytes would take a minute."""
    struct_of_many = header(b"\x1c" + header(*[b"\x1c" + header(b"\x11" * 60)] * 60))
    data = header(*PAGE[:3], PAGE[3], struct_of_many[:-1]) + bytes(4)
    with pytest.raises(ValueError, match="would take more than 1 MiB"):
        check_inflation(Footer(1, len(data)), io.BytesIO(data), len(data))


def test_columns_that_overlap_are_refused() -> None:
    data = header(*PAGE) + bytes(4)
    check_inflation(Footer(1, len(data)), io.BytesIO(data), len(data))
    with pytest.raises(ValueError, match="column a does not begin after the one before it"):
        check_inflation(Footer(2, len(data)), io.BytesIO(data), len(data))

"""Walks the page headers of a Parquet file before it is decoded: readers allocate what these say, whatever the footer
says, and a kilobyte may decode to gigabytes."""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

SMALL = 2 << 30
"""Decoded bytes that any table may have. A larger table may have `_RATIO` times the bytes of its file: real episodes,
whose log-probabilities hardly compress, have up to 40 times."""
_RATIO = 256
_PER_VALUE, _PER_PAGE, _PER_FIELD = 16, 1 << 14, 1 << 12
"""Bytes counted for a value beside its own, for its place in lists, and for a page and a field of its header, for the
time that it takes."""
_LARGEST_HEADER = 64 << 10
_LAST_FIELD = 64
"""Maximum size of a page's header in bytes, and number of a field; those of Parquet end at 8."""
_DEEPEST = 2
"""Dots in the path of a list's values, such as `response_tokens.list.element`, and structs within a page's header."""
_PLAIN = 0
_HEADERS = {0: (5, 2), 3: (8, 4)}
"""By kind of page with values: the field of its own header, and there the field of the encoding."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
"""Types of fields in Thrift's compact protocol."""


def check_inflation(metadata: Any, data: BinaryIO, size: int) -> None:
    """Raises ValueError if a table would take far more memory than its file has bytes, or if that cannot be told
    because its values are not stored plainly, as in dictionaries.

    `metadata`: pyarrow's, of the file `data` of `size` bytes.
    """
    most, decoded, last = max(SMALL, _RATIO * size), 0, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name, begin = chunk.path_in_schema, chunk.data_page_offset
            fixed = chunk.physical_type == "FIXED_LEN_BYTE_ARRAY"
            if fixed or chunk.has_dictionary_page or name.count(".") > _DEEPEST:
                raise ValueError(f"column {name:.99} is not stored plainly")
            if not last <= begin <= begin + chunk.total_compressed_size:
                raise ValueError(f"column {name:.99} does not begin after the one before it")
            last = begin + chunk.total_compressed_size
            for page in _pages(data, begin, last, f"column {name:.99}"):
                decoded += page.size + _PER_VALUE * page.values + _PER_PAGE + _PER_FIELD * page.fields
                if decoded > most:
                    raise ValueError(f"would take more than {most >> 20} MiB; its file has {size} bytes")


class _Page(NamedTuple):
    """Bytes and values of a decoded page, and fields of its header."""

    size: int
    values: int
    fields: int


def _pages(data: BinaryIO, begin: int, end: int, where: str) -> Iterator[_Page]:
    while begin < end:
        data.seek(begin)
        start = io.BytesIO(data.read(min(_LARGEST_HEADER, end - begin)))
        header = _struct(start)
        own, encoding = _HEADERS.get(header.get(1, -1), (0, 0))
        values = header.get(own)
        if not isinstance(values, dict) or values.get(encoding) != _PLAIN:
            raise ValueError(f"{where} is not stored plainly")
        size, stored, count = header.get(2, -1), header.get(3, -1), values.get(1, -1)
        if not all(isinstance(each, int) and 0 <= each < 1 << 31 for each in (size, stored, count)):
            raise ValueError(f"{where} has a page without its size")
        yield _Page(size, count, _count(header))
        begin += start.tell() + stored


def _count(fields: dict[int, Any]) -> int:
    return sum(1 + (_count(value) if isinstance(value, dict) else 0) for value in fields.values())


def _struct(data: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """Numbers and structs by number of their fields, None for all else. Raises ValueError for what no writer writes in
    a page's header, and readers may read in another way: fields twice, in long form or of high numbers, lists, and
    deeper structs."""
    fields: dict[int, Any] = {}
    field = 0
    while head := _byte(data):
        step, kind = divmod(head, 16)
        field += step
        if not step or field > _LAST_FIELD or depth > _DEEPEST:
            raise ValueError("has a page with a header that cannot be read")
        fields[field] = _value(data, kind, depth)
    return fields


def _value(data: BinaryIO, kind: int, depth: int) -> Any:
    if kind in (_I16, _I32, _I64):
        number = _varint(data)
        return (number >> 1) ^ -(number & 1)
    if kind == _STRUCT:
        return _struct(data, depth + 1)
    if kind not in (_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY):
        raise ValueError("has a page with a header that cannot be read")
    if kind == _BINARY:
        data.seek(min(_varint(data), _LARGEST_HEADER), 1)  # beyond the header's end nothing is read
    elif kind in (_BYTE, _DOUBLE):
        data.seek(1 if kind == _BYTE else 8, 1)
    return None


def _varint(data: BinaryIO) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = _byte(data)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("has a page with a header that cannot be read")


def _byte(data: BinaryIO) -> int:
    if not (byte := data.read(1)):
        raise ValueError(f"ends within a page's header, or has one of more than {_LARGEST_HEADER >> 10} KiB")
    return byte[0]

"""The one place that prints: text of models, buckets and clusters gives a terminal no commands.

A test looks for other places.
"""

import logging
import re
from typing import TextIO

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\x1b"} | {0x7F: 0x2421}
"""Control characters that Unicode has a picture of, one character wide, as the control character is not."""
# C1, directions of writing, which reorder a line, and line ends that are none.
_OTHERS = (*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0x61C, 0x200E, 0x200F)
_TABLE = {**_PICTURES, **dict.fromkeys(_OTHERS, 0xFFFD)}
_ESCAPE = re.compile(r"\x1b(?!\[(?:[012]|3[1-6])m)")
"""An escape character that does not begin one of the colours and weights that this program uses."""


def clean(text: str) -> str:
    """The text with its control characters as pictures of them, such as ␛, except tabs and line ends."""
    return text.translate(_TABLE).replace("\x1b", "\u241b")


def write_line(text: str, out: TextIO) -> None:
    """Prints a text and a line end at once, `clean` but for our own colours. Raises OSError where nobody reads it."""
    out.write(_ESCAPE.sub("\u241b", text.translate(_TABLE)) + "\n")
    out.flush()


class CleanFormatter(logging.Formatter):
    """Formats log records `clean`: they quote responses and rows."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))

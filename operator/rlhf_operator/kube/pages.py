"""Reads an API server's JSON object by object: of a page of a hundred jobs as large as it stores, which take gigabytes
of dictionaries, one is whole at a time, and what is kept of the others."""

import codecs
import json
import re
from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Keep = Callable[[Body], Body]
"""Returns what is kept of an object."""

_ITEMS = re.compile(r'"items":\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST = 32 << 20
"""Maximum length of what is not an item, and of an item, in characters; an API server stores less than 4 MiB."""
_SHORT_LINE = 64 << 10


class Page:
    """Parser of a list, which is fed the reply's bytes as they come; any other JSON object is read as it is."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._head, self._rest = "", ""
        self._items: list[Body] = []
        self._enough, self._over = 0, False

    def feed(self, data: bytes) -> None:
        """Raises ValueError if an item is longer than any that is stored."""
        self._rest += self._decode(data)
        if len(self._rest) >= self._enough and not self._over:
            self._take()
        if len(self._rest) > _LONGEST:
            raise ValueError(f"the API server's reply has an object of more than {_LONGEST} characters")

    def end(self) -> Any:
        """The list, with what is kept of each item. Raises ValueError if it is no JSON, or incomplete."""
        if not self._over:
            self._take()
        outline = json.loads(self._head + self._rest)
        if self._head:
            outline["items"] = self._items
        return outline

    def _take(self) -> None:
        """Parses the items that are complete. Of an incomplete one, twice as much is awaited: it is not read anew with
        each packet."""
        if not self._head:
            match = _ITEMS.search(self._rest)
            if match is None:
                return
            self._head, self._rest = self._rest[: match.end()], self._rest[match.end() :]
        at, read = 0, json.JSONDecoder().raw_decode
        while True:
            at = _next(self._rest, at)
            if at == len(self._rest):
                break
            if self._rest[at] == "]":
                self._over = True
                break
            try:
                item, at = read(self._rest, at)
            except json.JSONDecodeError:
                break
            self._items.append(self._keep(item))
        self._rest = self._rest[at:]
        self._enough = 2 * len(self._rest)


def _next(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


class Lines:
    """Splits a watch's bytes into lines, each an event, and shortens the long ones."""

    def __init__(self, keep: Keep) -> None:
        self._keep, self._rest = keep, b""

    def feed(self, data: bytes) -> bytes:
        """The complete lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(self._short(line) + b"\n" for line in lines)

    def end(self) -> bytes:
        return self._rest

    def _short(self, line: bytes) -> bytes:
        if len(line) <= _SHORT_LINE:
            return line
        event = json.loads(line)
        return json.dumps({**event, "object": self._keep(event["object"])}).encode()

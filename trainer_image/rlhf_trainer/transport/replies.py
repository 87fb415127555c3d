"""Replies of servers that are not trusted: their bodies are bounded and never inflated, and their waits have an end."""

import datetime
import re
from email.utils import parsedate_to_datetime

import aiohttp

CODING_CHARACTERS = 50
"""Characters of an unknown coding's name in a message."""
LONGEST_WAIT = 3600.0
"""Longest time for which a server that asks for it is left alone, seconds."""
PLAIN = {"Accept-Encoding": "identity"}
"""Request header: a reply that is compressed may be of any size once it is inflated, and is refused."""


def retry_after(header: str, now: float) -> float:
    """Seconds from `now`, a Unix time, until the header's, LONGEST_WAIT at most; 0 for a time that is over and for
    anything else than seconds or an HTTP date."""
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(LONGEST_WAIT, float(header))
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    # A date in `-0000`, which says nothing of a zone, is UTC as all HTTP dates are.
    return min(LONGEST_WAIT, max(0.0, date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp() - now))


async def read_reply(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, of at most `most` bytes; the session must not decompress.

    Raises:
        aiohttp.ClientPayloadError: it is longer, or compressed. No more than `most` bytes of it are kept.
    """
    check_plain(response)
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > most:
            raise aiohttp.ClientPayloadError(f"the reply is longer than {most} bytes")
    return bytes(content)


async def read_start(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first `most` bytes of the body, whatever they are."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) >= most:
            break
    return bytes(content[:most])


def check_plain(response: aiohttp.ClientResponse) -> None:
    """Raises aiohttp.ClientPayloadError if the body is compressed."""
    if (coding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
        how = f"compressed with {coding[:CODING_CHARACTERS]!r}, which the request does not accept"
        raise aiohttp.ClientPayloadError(f"the reply is {how}")

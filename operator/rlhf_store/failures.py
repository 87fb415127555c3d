"""Errors of object stores, in their own words on one line, and retries of those that pass."""

import logging
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from obstore.exceptions import BaseError, GenericError

log = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
_TOLD_SECONDS = 1.0
"""A failure that passes sooner is nobody's business."""
T = TypeVar("T")


class StoreError(RuntimeError):
    """The store refuses, or does not answer for as long as it is waited for."""


class Missing(LookupError):
    """There is no object under this key."""


class Conflict(RuntimeError):
    """Somebody else wrote this object."""


def patiently(call: Callable[[], T], patience: timedelta) -> T:
    """Calls `call`, with retries of network and server errors for as long as `patience`.

    Raises:
        StoreError: it still fails, or the store refuses, which trying again would not change.
    """
    deadline, wait = time.monotonic() + patience.total_seconds(), _FIRST_WAIT_SECONDS
    while True:
        try:
            return call()
        except (BaseError, OSError) as error:
            passing = isinstance(error, GenericError | OSError) and time.monotonic() + wait < deadline
            if not passing:
                raise StoreError(f"the checkpoint store fails: {reason(error)}") from error
            if wait > _TOLD_SECONDS:
                log.warning("the checkpoint store fails, trying again: %s", reason(error))
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def reason(error: BaseException) -> str:
    """The store's message: an XML answer's own words, without the library's timings and debugging."""
    text = str(error).partition("\n\nDebug source")[0]
    head, _, answer = text.partition("<?xml")
    noise = r"^Generic \w+ error: (Error performing \w+ request: )?| in [\d.]+.?s\b(, after .*retry_timeout: \w+)?"
    head = re.sub(noise, "", head)
    said = re.search(r"<Message>(.*?)\.?</Message>", answer)
    return " ".join(f"{head}{said.group(1) if said else answer}".split())[:500]

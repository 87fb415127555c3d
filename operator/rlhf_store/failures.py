"""Errors of object stores as one line each, and retries of transient ones."""

import logging
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from obstore.exceptions import (
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from .errors import StoreError

log = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
_TOLD_SECONDS = 1.0
"""Duration of transient failures that are not reported, seconds."""
_CAUSE = re.compile(r'InvalidCertificate\(\s*(?P<certificate>\w+)|(?:message|error): "(?P<said>[^"]+)"')
"""Pattern of the cause of a failed connection in the library's debug output, as its message names none."""
_STATUS = re.compile(r"status(?: code)?:? ([45]\d\d(?: [A-Z][A-Za-z]{1,15}){1,3})\b")
REFUSED = (PermissionDeniedError, UnauthenticatedError)
T = TypeVar("T")


def patiently(
    call: Callable[[], T],
    url: str,
    patience: timedelta,
    retrying: Callable[[str], None],
    *,
    allowed: bool = False,
    brief: bool = False,
) -> T:
    """Calls `call`, which asks the store of a URL, retrying network and server errors for up to `patience`. `retrying`
    is called before each retry, with the reason once the failure has lasted, else with ''. `allowed`: the store has
    taken such requests before, so a refusal is retried too: keys that are rotated are invalid for a while, and
    permissions can be put right. `brief`: errors have none of the server's own words.

    Raises:
        StoreError: it still fails, or the store refuses the request.
    """
    deadline, wait = time.monotonic() + patience.total_seconds(), _FIRST_WAIT_SECONDS
    transient = (GenericError, OSError, *(REFUSED if allowed else ()))
    while True:
        try:
            return call()
        except (BaseError, OSError) as error:
            passing = isinstance(error, transient) and time.monotonic() + wait < deadline
            if not passing:
                cause = _status(error) if brief else reason(error)
                raise StoreError(f"the store {url} fails: {cause}") from error
            failure = reason(error) if wait > _TOLD_SECONDS else ""
            if failure:
                log.warning("the store %s fails, trying again: %s", url, failure)
        retrying(failure)
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _status(error: BaseException) -> str:
    """The status of an HTTP error reply; `no answer` without one."""
    match = _STATUS.search(str(error).partition("\n\nDebug source")[0])
    return match[1] if match else "not there" if isinstance(error, NotFoundError) else "no answer"


def reason(error: BaseException) -> str:
    """The store's message from an XML error reply, or why there is no connection, without the library's timings and
    debug output."""
    text, _, debug = str(error).partition("\n\nDebug source")
    head, _, answer = text.partition("<?xml")
    noise = r"^Generic \w+ error: (Error performing \w+ request: )?| in [\d.]+.?s\b(, after .*retry_timeout: \w+)?"
    head = re.sub(noise, "", head)
    if "HTTP error" in head and (cause := _CAUSE.search(debug)):
        untrusted = f"its certificate is not trusted ({cause['certificate']})"
        head += f": {cause['said'] or f'{untrusted}; SSL_CERT_FILE names the authorities that are'}"
    message = re.search(r"<Message>(.*?)\.?</Message>", answer)
    return " ".join(f"{head}{message.group(1) if message else answer}".split())[:500]

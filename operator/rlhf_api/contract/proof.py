"""Keys of requests between a job's processes and its host, derived from the job's token, which never travels; pure.

A client asks whoever answers at an address for an HMAC of the client's nonce, the address, and a nonce that the process
drew at its start. Its requests then carry a key that is an HMAC of the latter two: it opens nothing at another address,
nor once that process has ended. Who has taken a process's address, such as a port of its node, can neither answer nor
pass the question on to another process of the job, whose address is another.
"""

from __future__ import annotations  # Python 3.8 imports it too, in a pod of sandboxes

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

PROOF = "/v1/proof"
"""GET with `nonce`: Prover.answer. Needs no token."""
PROOF_BYTES = 1024
"""Maximum size of an answer in bytes."""
_NONCE = re.compile(r"[0-9a-f]{32}")


def lesser_token(token: str, name: str) -> str:
    """A token of this name that follows from the job's and does not tell it."""
    return _mac(token, "token", name)


def new_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Prover:
    """A server process with its job's token, as others reach it; make one at each start."""

    token: str
    host: str
    port: int
    nonce: str = field(default_factory=new_nonce)

    def answer(self, nonce: str) -> str | None:
        """The answer to a client's nonce, as JSON; None if that is none, or there is no token."""
        if not self.token or not _NONCE.fullmatch(nonce):
            return None
        proof = _mac(self.token, "proof", self._address, self.nonce, nonce)
        return json.dumps({"nonce": self.nonce, "proof": proof})

    def admits(self, authorization: bytes) -> bool:
        """True for the header of a request with this process's key, or with the token itself: of release 0.1.0."""
        keys = (self._key, self.token)
        return bool(self.token) and any(
            hmac.compare_digest(authorization, f"Bearer {key}".encode()) for key in keys
        )

    @cached_property
    def _key(self) -> str:
        return _key(self.token, self._address, self.nonce)

    @property
    def _address(self) -> str:
        return f"{self.host}:{self.port}"


def question(url: str, nonce: str) -> str:
    """The URL that asks the server of a URL for a proof."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{PROOF}?nonce={nonce}"


def key_of(token: str, url: str, nonce: str, answer: bytes) -> str | None:
    """The key of requests to the server of a URL, by its answer to a nonce; None if that proves nothing."""
    parts = urlsplit(url)
    address = f"{parts.hostname}:{parts.port}"
    try:
        theirs, proof = (json.loads(answer)[name] for name in ("nonce", "proof"))
        proven = _NONCE.fullmatch(theirs) and hmac.compare_digest(
            proof, _mac(token, "proof", address, theirs, nonce)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return _key(token, address, theirs) if proven else None


def _key(token: str, address: str, nonce: str) -> str:
    return _mac(token, "key", address, nonce)


def _mac(token: str, *parts: str) -> str:
    return hmac.new(token.encode(), "\n".join(parts).encode(), hashlib.sha256).hexdigest()

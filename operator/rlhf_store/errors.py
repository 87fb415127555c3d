"""Errors of a store and its snapshots. Needs no client of stores, so that whoever reports them can name them."""


class UnusableStore(Exception):
    """The store cannot serve this run, and a retry would not help: it cannot be opened, is of another release, or has
    been taken over by another writer."""


class StoreError(RuntimeError):
    """The store refuses a request, or does not respond within the deadline."""


class TooLarge(StoreError):
    """An object is larger than it may be; nothing of it was read."""


class Missing(LookupError):
    """There is no object with this key."""


class Conflict(RuntimeError):
    """Another writer has written this object."""


class DamagedSnapshot(RuntimeError):
    """A part of a snapshot is missing or does not match its hash."""


class MissingSnapshot(LookupError):
    """The store has no snapshot of this step."""

"""Opens a checkpoint store for the page, whose readers wait."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from ..archive.open_store import package

if TYPE_CHECKING:
    from rlhf_store.archive import Archive

_PATIENCE = timedelta(seconds=3)
"""Time for which a store may fail: others wait for the reply too."""
FAILED_SECONDS = 15.0
"""Time for which a store that failed is not asked again: others wait meanwhile."""


def open_archive(url: str, keys: Mapping[str, str] | None = None) -> "Archive":
    """The store of a URL, with these keys or the environment's; see `rlhf_store.store.StoreOptions`. Raises InvalidJob
    without its packages, and UnusableStore."""
    options = package("rlhf_store.store").StoreOptions(_PATIENCE, keys=keys)
    opened: Archive = package("rlhf_store.archive").Archive(url, options)
    return opened

"""A turn of the model as text, as workers get it."""

from typing import NamedTuple


class TurnText(NamedTuple):
    """`text`: without special tokens and without the stop string that ends it; `raw`: all that was sampled; `is_whole`:
    an end of a turn or a stop string ended it, not its length; and the numbers of tokens `before` it and `sampled`."""

    text: str
    raw: str
    is_whole: bool = True
    before: int = 0
    sampled: int = 0

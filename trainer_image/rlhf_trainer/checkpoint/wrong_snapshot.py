"""Error of a snapshot whose tensors are not the training state."""


class WrongSnapshot(RuntimeError):
    """The tensors that were about to be saved are not the training state: nothing of them is committed, and the
    snapshot before stays the newest."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the snapshot is wrong and was not saved, the one before stays: {message}")

"""What every request to a vLLM server meets first."""

from .guard import App, TokenGuard
from .probes import Probes


class Front(TokenGuard):
    """ASGI middleware (`--middleware rlhf_trainer.weights.front.Front`): the token check, and behind it the probes."""

    def __init__(self, app: App) -> None:
        super().__init__(Probes(app))

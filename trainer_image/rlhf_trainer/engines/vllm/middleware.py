"""What every request to a vLLM server meets first."""

from .commit import Commit
from .guard import App, TokenGuard
from .probes import Probes


class Front(TokenGuard):
    """ASGI middleware of the vLLM server: the token check, and behind it the probes and the commit of new weights."""

    def __init__(self, app: App) -> None:
        super().__init__(Probes(Commit(app)))

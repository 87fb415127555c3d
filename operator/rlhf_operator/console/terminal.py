"""Console of all that is drawn on a terminal: see `rlhf_api.host.printing`."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rlhf_api.host.printing import clean


class CleanConsole(Console):
    """Draws text without the control characters in it; those of styles and of the cursor are the console's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(clean(text), style)

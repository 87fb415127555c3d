"""Resource kinds that kopf has discovered and watches.

kopf leaves out what it does not find, with no more than a warning, and tells of it only in an object whose class it
does not export. This is the one private import of kopf; pyproject.toml bounds its version to those that were tested.
"""

from kopf._cogs.structs.references import Insights


class Discovered:
    """`insights` is for `kopf.spawn_tasks`, which fills it in."""

    def __init__(self) -> None:
        self.insights = Insights()

    async def plurals(self) -> set[str]:
        """Waits for kopf's first discovery; the plural names of what it watches then."""
        await self.insights.ready_resources.wait()
        return {resource.plural for resource in self.insights.watched_resources}

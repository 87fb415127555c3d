"""Resource kinds that kopf has discovered and watches.

kopf skips kinds that it does not find, with only a warning, and exposes the found ones only in an object of a class
that it does not export. This is the one private import of kopf; pyproject.toml bounds its version to those tested.
"""

from kopf._cogs.structs.references import Insights


class Discovered:
    """Wraps kopf's `insights`, which `kopf.spawn_tasks` fills."""

    def __init__(self) -> None:
        self.insights = Insights()

    async def plurals(self) -> set[str]:
        """Waits for kopf's first discovery; plural names of the watched kinds."""
        await self.insights.ready_resources.wait()
        return {resource.plural for resource in self.insights.watched_resources}

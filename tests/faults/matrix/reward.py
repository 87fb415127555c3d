"""The reward of these jobs; a module of its own, since each of its processes imports it."""


def shorter(prompts: list[str], responses: list[str], rows: list[dict[str, object]]) -> list[float]:  # noqa: ARG001
    """Shorter is better."""
    return [-len(response) / 10 for response in responses]

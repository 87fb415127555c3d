"""From what was observed to a plan; pure."""

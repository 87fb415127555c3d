"""Limits of numbers, also for processes that read no manifest and start in a moment. Imports nothing."""

LARGEST_SCORE = 3.4028234663852886e38
"""The largest float32, in which scores reach the trainer: what is larger would be infinite there."""

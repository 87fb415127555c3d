"""Optimizer steps on an episode."""

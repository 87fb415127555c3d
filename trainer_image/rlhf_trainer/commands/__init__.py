"""Processes that `rlhf` starts in the trainer's environment."""

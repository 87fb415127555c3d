"""Processes that episodes live in: beside the trainer, or in the role of environments."""

"""Environments of episodes of several turns: the user's class in worker processes, and its replies as exact tokens."""

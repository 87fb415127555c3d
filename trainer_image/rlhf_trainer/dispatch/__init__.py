"""Rank 0 and the other roles: who there is, and which of them does what part of the work."""

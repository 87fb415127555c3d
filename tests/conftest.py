"""Property tests here draw the same examples every time, and no slow machine fails them."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

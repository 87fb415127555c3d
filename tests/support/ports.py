"""Ports for servers of tests."""

from rlhf_operator.local.resources.ports import assign


def free_port() -> int:
    """Below those that the system gives to whoever asks for any, so that it stays free until it is used."""
    return assign(["a test's"], None)["a test's"]

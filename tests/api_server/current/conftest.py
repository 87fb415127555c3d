"""One server for all tests, with today's definition; a namespace of its own for each."""

from collections.abc import Iterator
from functools import cache

import pytest
from tests.api_server.current import binary as built
from tests.api_server.current.binary import Binary
from tests.api_server.current.jobs import Jobs, define
from tests.api_server.current.server import Server, server
from tests.cluster.packages import Unavailable


@cache
def _binary() -> Binary | str:
    """Or why there is none."""
    try:
        return built.binary()
    except Unavailable as reason:
        return str(reason)


def pytest_runtest_setup() -> None:
    # Not in a fixture: pytest tells of those with a line for each test.
    if isinstance(reason := _binary(), str):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def binary() -> Binary:
    server_binary = _binary()
    assert isinstance(server_binary, Binary)
    return server_binary


@pytest.fixture(scope="session")
def modern(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(binary, tmp_path_factory.mktemp("modern")) as running:
        define(running)
        yield running


@pytest.fixture
def jobs(modern: Server) -> Jobs:
    return Jobs(modern)


@pytest.fixture
def own_server(binary: Binary, tmp_path) -> Iterator[Server]:
    """For tests that change the definition; it has none yet."""
    with server(binary, tmp_path) as running:
        yield running

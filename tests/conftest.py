"""Property tests here draw the same examples every time, and no slow machine fails them; one S3 server serves all."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.support.servers.seaweed import Seaweed, Server, running

from rlhf_api.contract.run import SHARE_CORES

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
os.environ |= SHARE_CORES  # before torch is loaded, also where tests compute in a process of their own
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as whoever starts them in the background has it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# What is imported stays, so that no garbage collection needs to look at it, as in a role: a trainer's loop asks for one
# each step, and DeepSpeed for many.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # for Python's end, of which some libraries complain otherwise


@pytest.fixture(scope="session")
def store_server(tmp_path_factory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(store_server: Server) -> Seaweed:
    return store_server.address

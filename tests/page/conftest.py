"""A browser, and one `rlhf ui` over runs whose folders are written as runs write them."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.page.browser import Tab, require_browser, running_browser
from tests.page.runs import Written, write_runs


@pytest.fixture(scope="module")
def browser():
    """Of a module, as Playwright's event loop runs in this thread until it ends, and asyncio then starts none."""
    with running_browser(require_browser()) as browser:
        yield browser


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def address(written: Written) -> Iterator[str]:
    """That `rlhf ui` printed, with the token."""
    command = [sys.executable, "-m", "rlhf_operator.cli", "ui", str(written.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield read_address(server)
        finally:
            server.terminate()


def read_address(server: subprocess.Popen[str]) -> str:
    """Its first line has it; the server ends if it cannot serve, and with it the line."""
    assert server.stdout is not None
    line = server.stdout.readline()
    match = re.search(r"http://\S+", line)
    assert match is not None, line
    return match[0]


@pytest.fixture
def open_tab(browser, address: str) -> Iterator[Callable[..., Tab]]:
    """Opens tabs, and asserts as the test ends that none had a complaint."""
    tabs: list[Tab] = []

    def open_one(**options) -> Tab:
        tabs.append(Tab(browser, address, **options))
        return tabs[-1]

    yield open_one
    for tab in tabs:
        tab.close()
    assert [tab.complaints for tab in tabs] == [[]] * len(tabs)

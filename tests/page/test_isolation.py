"""Tests of the page leave nothing to those of other folders that run after them."""

import subprocess
import sys
from pathlib import Path

from tests.support.sources.packaging import ROOT

CONFTEST = """
from contextlib import contextmanager
from playwright.sync_api import sync_playwright
from tests.page import conftest
from tests.page.conftest import browser

@contextmanager
def without_browser(_program):
    with sync_playwright() as playwright:
        yield playwright

conftest.require_browser = lambda: ""
conftest.running_browser = without_browser
"""
ON_PAGE = "def test_it(browser):\n    assert browser.chromium.name == 'chromium'\n"
LATER = "import asyncio\n\ndef test_it():\n    asyncio.run(asyncio.sleep(0))\n"


def test_the_event_loop_of_a_browser_ends_with_the_last_test_that_has_it(tmp_path: Path) -> None:
    """While Playwright runs one in this thread, asyncio starts no other."""
    files = {"conftest": CONFTEST, "test_1": ON_PAGE, "test_2": LATER}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        tmp_path,
    )
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 passed" in ran.stdout, ran.stdout

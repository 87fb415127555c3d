"""Pictures of the page for its docs, of the runs that its tests see.   python -m tests.page.screenshots [FOLDER]"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.page.browser import Tab, find_chromium, running_browser
from tests.page.conftest import read_address
from tests.page.runs import WORDS, write_runs
from tests.support.sources.packaging import ROOT

IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1120, "height": 760}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, opened_page(write_runs(Path(scratch)).folder) as tab:
        take_all(tab, folder)


@contextmanager
def opened_page(*places: Path) -> Iterator[Tab]:
    """The page of `rlhf ui` over these places."""
    command = [sys.executable, "-m", "rlhf_operator.cli", "ui", *map(str, places)]
    with (
        running_browser(find_chromium()) as browser,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            tab = Tab(browser, read_address(server), viewport=SIZE, color_scheme="light")
            yield tab
            tab.close()
        finally:
            server.terminate()


def take_picture(page: Page, file: Path) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # bars have grown
    page.screenshot(path=file)


def take_all(tab: Tab, folder: Path) -> None:
    """A picture of each view, as a reader comes to it."""
    page = tab.page

    def take(name: str) -> None:
        take_picture(page, folder / f"page-{name}.png")

    for name in ("kind", "blunt"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.locator("canvas").first.wait_for()
    take("runs")
    page.get_by_role("link", name="kind", exact=True).click()
    page.locator("canvas").nth(7).wait_for()
    take("run")
    page.get_by_role("navigation").get_by_role("link", name="Samples").click()
    page.get_by_role("searchbox", name="Text").fill("told twice")
    expect(page.locator(".sample")).to_have_count(1)
    page.get_by_role("button", name=re.compile("story told twice")).click()
    page.locator(".token").nth(len(WORDS) - 1).wait_for()
    page.locator(".samples").evaluate("list => list.scrollIntoView()")
    take("samples")
    page.get_by_role("navigation").get_by_role("link", name="Timeline").click()
    page.get_by_role("row", name=re.compile("^trainer rank 0")).wait_for()
    take("timeline")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)

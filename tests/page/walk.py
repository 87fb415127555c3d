"""Pictures of real runs for docs/guides/reading-a-run.md, which has the commands that make them.

    python -m tests.page.walk RUNS STEP [FOLDER]

RUNS holds `ppo`, `brief` and `kills`; STEP is one of `kills` in which a generator was killed.
"""

import re
import sys
from pathlib import Path

from playwright.sync_api import Page
from tests.page.screenshots import IMAGES, opened_page, take_picture


def main(runs: Path, step: str, folder: Path) -> None:
    with opened_page(*(runs / name for name in ("ppo", "brief", "kills"))) as tab:
        page = tab.page
        for name in ("ppo", "brief", "kills"):
            open_run(page, name)
            if name == "kills":
                page.get_by_role("heading", name="Figures").scroll_into_view_if_needed()
                page.mouse.wheel(0, 200)
            take_picture(page, folder / f"walk-{name}.png")
        open_view(page, "Timeline")
        page.get_by_label("Step", exact=True).fill(step)
        page.keyboard.press("Enter")
        page.get_by_role("row", name=re.compile("^generator-1")).wait_for()
        take_picture(page, folder / "walk-kills-timeline.png")
        page.get_by_role("navigation").get_by_role("link", name="Runs").click()
        open_run(page, "brief")
        open_view(page, "Samples")
        page.locator(".sample").nth(3).wait_for()
        take_picture(page, folder / "walk-brief-samples.png")


def open_run(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Runs").click()
    page.get_by_role("link", name=name, exact=True).click()
    page.locator("canvas").nth(7).wait_for()


def open_view(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]) if len(sys.argv) > 3 else IMAGES)

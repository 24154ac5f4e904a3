"""Take the screenshots in the pages again: `make screenshots`, or

python -m docs.screenshots [key=value ...]

A server and a worker run the quickstart in a temporary folder, and Chromium takes screenshots of its results. The words
override settings of the quickstart: with `training.max_steps=40`, this program takes two minutes.
"""

import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from docs.screenshots.browser import NoPicture, find_browser, open_page, take

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from docs.screenshots.quickstart import Shown


def flow_run(page: "Page", shown: "Shown") -> None:
    """The flow run in Prefect's UI, with the graph of its tasks."""
    page.goto(f"{shown.ui}/runs/flow-run/{shown.flow_run}")
    page.locator("canvas").wait_for()
    page.get_by_text("Finished in state").first.wait_for()
    page.wait_for_timeout(5000)  # the graph is drawn on a canvas, which gives no sign of being finished


def report(page: "Page", shown: "Shown") -> None:
    """The run's report in Prefect's UI."""
    page.goto(shown.artifact("report"))
    page.get_by_role("heading", name="Results").wait_for()


def report_page(page: "Page", shown: "Shown") -> None:
    """The page report.html of the run."""
    page.goto((shown.run / "report.html").as_uri())


PICTURES: dict[str, Callable[["Page", "Shown"], None]] = {
    "flow-run.png": flow_run,
    "report.png": report,
    "report-page.png": report_page,
}
"""The function that opens the page of each picture."""


def main(words: list[str]) -> int:
    """Take all pictures; return the exit status."""
    try:
        browser = find_browser()
        from docs.screenshots.quickstart import quickstart

        with (
            tempfile.TemporaryDirectory() as folder,
            quickstart(Path(folder), free_port(), words) as shown,
            open_page(browser) as page,
        ):
            for name, show in PICTURES.items():
                show(page, shown)
                take(page, name, Path(folder))
    except NoPicture as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def free_port() -> int:
    """A port that is free on this machine."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

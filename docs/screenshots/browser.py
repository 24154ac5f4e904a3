"""Take pictures of pages with this machine's Chromium."""

import io
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from docs.screenshots import FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZE = {"width": 1360, "height": 860}
"""Size of each picture in pixels."""

COLORS = 255
MOST_BYTES = 300_000

TEXT_IN_VIEW = """() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    const range = document.createRange(), seen = []
    while (texts.nextNode()) {
        range.selectNodeContents(texts.currentNode)
        const box = range.getBoundingClientRect()
        if (box.bottom > 0 && box.top < innerHeight) seen.push(texts.currentNode.data)
    }
    return seen.join("\\n")
}"""


class NoPicture(Exception):
    """A picture that cannot be taken, or must not be published."""


def find_browser() -> str:
    """The path of the browser's program. Raises `NoPicture` if the browser or playwright is missing."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoPicture(
            f"pictures need Chromium, and none of {', '.join(PROGRAMS)} is on the path: install it, on Debian with "
            "`apt-get install chromium`"
        )
    if find_spec("playwright") is None:
        raise NoPicture(
            "the package playwright, which controls the browser, is not installed: `make screenshots` installs it"
        )
    return found


@contextmanager
def open_page(browser: str) -> Iterator["Page"]:
    """A page of a new browser, with dark colours and times in UTC."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=browser) as launched:
        context = launched.new_context(viewport=SIZE, color_scheme="dark", timezone_id="UTC", locale="en-US")
        yield context.new_page()


def take(page: "Page", name: str, folder: Path) -> None:
    """Write a picture of the page as `name`, with few colours. No picture may show `folder`, where the job ran."""
    if found := of_this_machine(page.evaluate(TEXT_IN_VIEW), folder):
        raise NoPicture(f"{name} would show {found}, which is private to this machine: change the page's content")
    few = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(FOLDER / name, optimize=True)
    if (size := (FOLDER / name).stat().st_size) > MOST_BYTES:
        raise NoPicture(f"{name} has {size:,} bytes, more than {MOST_BYTES:,}: show less in it")


def of_this_machine(text: str, folder: Path) -> str | None:
    """The first path or name of this machine in a text."""
    checkout = FOLDER.parents[1]
    for private in (str(folder), str(checkout), str(Path.home()), socket.gethostname()):
        if re.search(rf"(?<!\w){re.escape(private)}(?!\w)", text):
            return private
    return None

"""The pictures in the pages are those taken by `make screenshots`."""

import re

import pytest
from PIL import Image

from docs.screenshots import FOLDER
from docs.screenshots.__main__ import PICTURES, main
from docs.screenshots.browser import MOST_BYTES, SIZE, of_this_machine
from tests.docs.pages import PAGES, name_of, without_code

IMAGE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")


def test_every_picture_that_is_taken_is_shown_and_the_other_way_round() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in IMAGE.findall(without_code(page))}
    assert shown == {FOLDER / name for name in PICTURES} == set(FOLDER.iterdir())


def test_every_picture_has_words_for_those_who_do_not_see_it() -> None:
    for page in PAGES:
        assert without_code(page).count("![") == len(IMAGE.findall(without_code(page))), name_of(page)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_as_large_as_the_others(name: str) -> None:
    assert (FOLDER / name).stat().st_size <= MOST_BYTES
    with Image.open(FOLDER / name) as picture:
        assert picture.format == "PNG" and picture.size == (SIZE["width"], SIZE["height"])


def test_a_picture_names_nothing_of_the_machine() -> None:
    checkout = FOLDER.parents[1]
    assert of_this_machine(f"reading {checkout}/data/raw", checkout / "elsewhere") == str(checkout)
    assert of_this_machine("worker on http://127.0.0.1:4200, runs/quickstart-1a2b3c4d", checkout) is None


def test_a_missing_browser_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pictures need Chromium") and "apt-get install chromium" in said
    assert len(said.splitlines()) == 1

"""Links in the documentation lead somewhere, and the README stays short."""

import re
from pathlib import Path

import pytest
import yaml

from docs.making.text import slug
from tests import ROOT
from tests.docs.pages import DOCS, PAGES, name_of, without_code

NAMED = re.compile(r"`(?:\w+\.)*(\w+)`\s+in\s+`((?:trainer|tasks|flows|tests|benchmarks)/[\w/]+\.py)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    """The relative links of a page."""
    return [target for target in LINK.findall(without_code(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings. Raises `AssertionError` if two headings have the same."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = [slug(heading.replace("`", "")) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    assert len(found) == len(set(found)), f"{name_of(page)} has two headings with the same anchor"
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_said_to_be_in_a_file_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:trainer|tasks|flows|tests|benchmarks)/[\w/.]+\w)`", text):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}: there is no such file"
    for name, path in NAMED.findall(text):
        said = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", said), f"{name_of(page)} says that {name} is in {path}"


def test_a_page_of_the_site_links_only_to_what_is_part_of_it() -> None:
    for page in DOCS.rglob("*.md"):
        for link in links(page):
            assert (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS), f"{name_of(page)}: {link}"


def test_every_page_has_its_place_in_the_site() -> None:
    text = re.sub(r"!!python/name:(\S+) \"\"", r"\1", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"]))
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150

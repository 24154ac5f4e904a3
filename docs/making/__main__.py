"""Generate reference pages from the code.

python -m docs.making            write docs/reference/commands.md, settings.md and errors.md
python -m docs.making --check    list the outdated pages; exit with 1 if there are any
"""

import sys
from pathlib import Path

from docs.making import commands, errors, settings

FOLDER = Path(__file__).parents[1] / "reference"
MADE = "<!-- Generated from the code by `make reference`; do not edit by hand. -->"
PAGES = {"commands.md": commands.page, "settings.md": settings.page, "errors.md": errors.page}


def stale_pages() -> dict[str, str]:
    """The new text of each outdated page, by file name."""
    made = {name: "\n".join([MADE, "", *page()]).rstrip() + "\n" for name, page in PAGES.items()}
    there = {name: (FOLDER / name).read_text(encoding="utf-8") for name in PAGES if (FOLDER / name).exists()}
    return {name: text for name, text in made.items() if there.get(name) != text}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return the exit status."""
    stale = stale_pages()
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/reference/{name} is outdated: `make reference` rewrites it", file=sys.stderr)
        return int(bool(stale))
    for name, text in stale.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

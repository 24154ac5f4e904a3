"""The pages of the reference that are made from the code.

python -m docs.making            write docs/reference/commands.md, settings.md and errors.md
python -m docs.making --check    say which of them are not up to date, and end with 1 if any is
"""

import sys
from pathlib import Path

from docs.making import commands, errors, settings

FOLDER = Path(__file__).parents[1] / "reference"
MADE = "<!-- Made from the code by `make reference`; not to be changed by hand. -->"
PAGES = {"commands.md": commands.page, "settings.md": settings.page, "errors.md": errors.page}


def stale_pages() -> dict[str, str]:
    """The text of each page that is not what the code says, by the name of its file."""
    made = {name: "\n".join([MADE, "", *page()]).rstrip() + "\n" for name, page in PAGES.items()}
    there = {name: (FOLDER / name).read_text(encoding="utf-8") for name in PAGES if (FOLDER / name).exists()}
    return {name: text for name, text in made.items() if there.get(name) != text}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them. Returns the exit status."""
    stale = stale_pages()
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: `make reference` writes it anew", file=sys.stderr)
        return int(bool(stale))
    for name, text in stale.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

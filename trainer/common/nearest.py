"""What somebody may have meant by a name that nothing has."""

import difflib
from collections.abc import Sequence

NAMED = 5
"""Names that are told at most."""

ALIKE = 0.5
"""The least similarity of a name that may be meant, by `difflib`: of a run's, also without the digest at its end."""


def tell_nearest(name: str, known: Sequence[str]) -> str:
    """The names that are the most like one, as the end of a message; of names that are all unlike it, the first."""
    if not known:
        return "there is none"
    if close := difflib.get_close_matches(name, known, NAMED, ALIKE):
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return f"there are {', '.join(map(repr, known[:NAMED]))}{more}"

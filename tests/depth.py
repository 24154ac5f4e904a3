"""Additional cases of the default tests: `make test-deep`, which CI also runs."""

from collections.abc import Sequence
from typing import Any

import pytest


def once(*cases: Any) -> Sequence[Any]:
    """A test's cases: the first for every run, the others marked `deep`."""
    first, *others = cases
    return [
        first,
        *(pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.deep) for case in others),
    ]

"""Cases that say more of what the default tests have said once: `make test-deep`, which CI runs as well."""

from collections.abc import Sequence
from typing import Any

import pytest


def once(*cases: Any) -> Sequence[Any]:
    """The cases of a test: the first in every run, the others in the deeper one."""
    first, *others = cases
    return [
        first,
        *(pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.deep) for case in others),
    ]

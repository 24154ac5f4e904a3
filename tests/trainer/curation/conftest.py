"""Where units of work are done in tests of curation."""

import pytest

from tests.trainer.curating import Here


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded what they need, but where a test is about workers."""
    if "workers" not in request.keywords:
        monkeypatch.setattr("trainer.curation.curate.Workers", Here)

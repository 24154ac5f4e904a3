"""What several tests of raw data use."""

import pytest


@pytest.fixture
def rotting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit that flips on a disk changes no time: what a test writes is not noticed by any but the file's own."""
    monkeypatch.setattr("trainer.data.sources.local_version", lambda status: str(status.st_mtime))

"""Runs by the names that people give, and what is said where none is meant."""

from pathlib import Path

import pytest

from trainer.common.display import suggest_nearest
from trainer.common.errors import ConfigError, PipelineError, RunError
from trainer.records.run_names import find_run_name
from trainer.store.storage import Store

RUNS = ("books-1a2b3c4d", "books-large", "code-11111111", "code-22222222", "chat")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    for run in RUNS:
        store.write_bytes(f"runs/{run}/config.json", b"{}")
    return store


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("books", "books-1a2b3c4d"), ("books-1", "books-1a2b3c4d"), ("books-l", "books-large"), ("chat", "chat"),
        ("ch", "chat"), ("code-2", "code-22222222"), ("books-1a2b3c4d", "books-1a2b3c4d"),
    ],
)  # fmt: skip
def test_a_run_is_meant_by_its_name_its_job_or_its_beginning(store: Store, said: str, meant: str) -> None:
    assert find_run_name(store, said) == meant


def test_what_changes_something_takes_no_run_by_its_beginning(store: Store) -> None:
    assert find_run_name(store, "books", exact=True) == find_run_name(store, "books-1a2b3c4d", exact=True)
    for beginning in ("books-l", "ch"):
        with pytest.raises(RunError, match=f"there is no run '{beginning}' in .*; did you mean"):
            find_run_name(store, beginning, exact=True)


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("code", ConfigError, "'code' has several runs: code-11111111, code-22222222; give the full name"),
        ("book", ConfigError, "'book' is a prefix of several runs: books-1a2b3c4d, books-large; give the full name"),
        (
            "boks",
            RunError,
            r"there is no run 'boks' in .*; did you mean .*'books-large'.*\? \(`headrace list .*` shows all\)",
        ),
        ("zzz", RunError, r"there is no run 'zzz' in .*; there are 'books-1a2b3c4d', .* \(`headrace list"),
        ("", RunError, r"there is no run '' in "),
    ],
)
def test_what_may_be_meant_is_told(store: Store, said: str, error: type[PipelineError], told: str) -> None:
    with pytest.raises(error, match=told):
        find_run_name(store, said)


def test_a_store_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"runs has no runs: check the store's path"):
        find_run_name(Store(str(tmp_path)), "any")


def test_the_nearest_names_are_told_and_of_many_the_first() -> None:
    assert suggest_nearest("near_duplicat", ["kept", "near_duplicate"]) == "did you mean 'near_duplicate'?"
    assert suggest_nearest("zzz", [*"abcdefg"]) == "there are 'a', 'b', 'c', 'd', 'e' and 2 more"
    assert suggest_nearest("zzz", []) == "there is none"

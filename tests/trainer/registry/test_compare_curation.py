"""Runs on the same raw text of which other documents were decided against, side by side."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.curated_runs import curated_run, run_through
from tests.trainer.registry.test_compare import cells
from tests.trainer.small_jobs import Finished
from trainer.common.display import size
from trainer.data.decisions import decisions_behind, read_decisions
from trainer.records.sealed import require_sealed
from trainer.registry.compare_runs import compare
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store

LONGER = {"filters": [{"kind": "length", "least_bytes": 1000}, {"kind": "language", "languages": ["en"]}]}


@pytest.fixture(scope="module")
def store(raw: Path, curated: Finished, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The curated run, one that drops other documents, and one on all text."""
    place = Path(shutil.copytree(curated.store, tmp_path_factory.mktemp("compare") / "store"))
    run_through(curated_run(raw, place, LONGER, run="longer"))
    whole = curated_run(raw, place, run="whole")
    run_through(whole.model_copy(update={"data": whole.data.model_copy(update={"curation": None})}))
    return Store(str(place))


def kept(store: Store, run: str, corpus: str, reason: str) -> str:
    """How many documents, and bytes, of a corpus there are for a reason."""
    keys = [ref["key"] for ref in require_sealed(store, f"{run}/config.json")["data"]["shards"]]
    (shards,) = [key for key in keys if key.startswith(f"shards/{corpus}-")]
    manifest = read_manifest(store, shards, "shards")
    assert manifest is not None
    (decisions,) = decisions_behind(manifest)
    (line,) = [line for line in read_decisions(store, decisions).details["table"][corpus] if line["reason"] == reason]
    return f"{line['documents']:,} ({size(line['bytes'])})"


@pytest.mark.deep
def test_options_and_counts_by_reason_that_differ_are_shown(store: Store, curated: Finished) -> None:
    text = compare(store, [curated.run, "longer"])
    assert cells(text, "data.curation.filters.length.least_bytes") == ["700", "1000"]
    assert cells(text, "data.curation.filters.language.languages") == ["–", '["en"]']
    runs = curated.run, "runs/longer"
    assert cells(text, "docs", "kept") == [kept(store, run, "docs", "kept") for run in runs]
    short = "length: bytes too low"
    assert cells(text, "docs", short) == [kept(store, run, "docs", short) for run in runs]
    assert cells(text, "docs", "contaminated") == [kept(store, runs[0], "docs", "contaminated"), "–"]
    assert "docs, B against A: the same 1 file, but different curation decisions" in text


@pytest.mark.deep
def test_text_about_which_nothing_was_decided_has_no_counts(store: Store, curated: Finished) -> None:
    assert cells(compare(store, [curated.run, "whole"]), "docs", "kept")[1] == "–"


@pytest.mark.deep
def test_the_same_decisions_are_not_shown(store: Store, curated: Finished) -> None:
    assert "Documents and bytes" not in compare(store, [curated.run, curated.run])


@pytest.mark.deep
def test_decisions_that_are_gone_are_named(store: Store, curated: Finished, tmp_path: Path) -> None:
    own = Store(str(shutil.copytree(store.url, tmp_path / "own")))
    own.delete("decisions")
    text = compare(own, [curated.run, "longer"])
    assert "Missing from the store or damaged, so only names are compared: decisions/" in text
    assert "Documents and bytes" not in text

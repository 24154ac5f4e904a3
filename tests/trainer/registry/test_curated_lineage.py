"""The decisions behind a run's text are told by its lineage, and by its report, with what the text is clean of."""

import shutil
from pathlib import Path

import pytest
from markupsafe import escape

from tests.headrace import headrace
from tests.trainer.curated_runs import KEPT_OUT
from tests.trainer.small_jobs import Finished
from trainer.common.display import markdown_text, size
from trainer.config.curation import NearConfig
from trainer.curation.descriptions import describe_decisions
from trainer.data.decisions import read_decisions
from trainer.registry.facts import read_facts
from trainer.registry.lineage import check, trace
from trainer.registry.print_store import describe_lineage
from trainer.registry.report import make_card, report_content
from trainer.store.manifest import MANIFEST, write_manifest
from trainer.store.storage import Store


@pytest.fixture
def store(curated: Finished, tmp_path: Path) -> Store:
    """A copy of the store with the curated run."""
    return Store(str(shutil.copytree(curated.store, tmp_path / "store")))


def decisions_of(store: Store) -> str:
    (name,) = store.names("decisions")
    return f"decisions/{name}"


def test_the_decisions_behind_shards_and_tokenizer_are_told(store: Store, curated: Finished) -> None:
    record, key = trace(store, curated.run)["lineage"], decisions_of(store)
    manifest = read_decisions(store, key)
    (told,) = record["decisions"]
    assert (told["key"], told["fingerprint"]) == (key, manifest.fingerprint)
    assert told["table"] == manifest.details["table"] and told["kept_out"] == manifest.details["kept_out"]
    assert [each["decisions"] for each in [record["tokenizer"], *record["shards"]]] == [[key]] * 3


def test_a_run_on_all_text_tells_of_no_decisions(finished: Finished) -> None:
    record = trace(Store(str(finished.store)), finished.run)["lineage"]
    assert "decisions" not in record
    assert not any("decisions" in each for each in [record["tokenizer"], *record["shards"]])


def test_the_command_tells_what_stayed_and_what_was_kept_out(
    store: Store, curated: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    details = read_decisions(store, decisions_of(store)).details
    assert headrace("lineage", store.url, curated.run) == 0
    said = capsys.readouterr().out
    assert f"  decisions       {decisions_of(store)}, made " in said
    assert describe_decisions(details) in said
    dropped = next(line for line in details["table"]["docs"] if line["reason"] == "length: bytes too low")
    assert f"docs: length: bytes too low: {dropped['documents']} documents (" in said
    (file,) = details["kept_out"]["files"]
    assert "no 13-gram of words of 1 evaluation file:\n" in said
    assert f"sha256 {file['sha256']}  {curated.store.parent / KEPT_OUT} (text)\n" in said


def test_the_search_for_near_duplicates_is_told_as_far_as_the_record_has_it(store: Store, curated: Finished) -> None:
    key = decisions_of(store)
    manifest = read_decisions(store, key)
    curation = {**manifest.details["curation"], "near": NearConfig().model_dump()}
    details = {**manifest.details, "curation": curation, "compared": {"pairs": 4, "incomplete": 0}}
    write_manifest(store, key, manifest.model_copy(update={"details": details}))
    store.delete(f"{curated.run}/lineage.json")
    traced = trace(store, curated.run)
    assert f"  {describe_decisions(details)}" in "\n".join(describe_lineage(traced, every_file=False))
    assert "; 4 pairs compared" in describe_decisions(details)
    (decided,) = traced["lineage"]["decisions"]
    del decided["compared"]  # as in earlier records
    (said,) = [line for line in describe_lineage(traced, every_file=False) if "near duplicates" in line]
    assert said.endswith("of the pairs at 0.8")


def test_decisions_that_changed_or_are_gone_are_named(
    store: Store, curated: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    key = decisions_of(store)
    assert {finding.state for finding in check(store, trace(store, curated.run))} == {"same"}
    manifest = read_decisions(store, key)
    write_manifest(store, key, manifest.model_copy(update={"created": "2031-01-01T00:00:00+00:00"}))
    assert headrace("lineage", store.url, curated.run, "--check") == 1
    note = "rebuilt at 2031-01-01T00:00:00+00:00, from the same inputs"
    assert f"  changed         {key}/{MANIFEST}: {note}\n" in capsys.readouterr().out
    store.delete(key)
    assert headrace("lineage", store.url, curated.run, "--check") == 1
    assert f"  gone            {key}/{MANIFEST}\n" in capsys.readouterr().out


def test_what_stayed_and_went_is_a_table_by_corpus_and_reason(curated: Finished) -> None:
    store = Store(str(curated.store))
    (name,) = store.names("decisions")
    details = read_decisions(store, f"decisions/{name}").details
    blocks = report_content(read_facts(store, curated.run)).data.blocks
    (block,) = [block for block in blocks if block.table and "Reason" in block.table.columns]
    assert block.table is not None
    told = {(row[0], row[1]): (row[2], row[4]) for row in block.table.rows}
    lines = [(corpus, line) for corpus, table in details["table"].items() for line in table]
    assert told == {
        (corpus, line["reason"]): (f"{line['documents']:,}", size(line["bytes"])) for corpus, line in lines
    }  # fmt: skip
    assert {reason for _, reason in told} == {"kept", "length: bytes too low", "contaminated"}
    assert f"decisions/{name}: " in block.note and "documents kept" in block.note


def test_page_and_card_state_what_the_text_is_clean_of(curated: Finished) -> None:
    store = Store(str(curated.store))
    facts = read_facts(store, curated.run)
    assert facts.clean_of is not None
    stated = facts.clean_of.describe()
    assert str(curated.store.parent / KEPT_OUT) in stated and facts.clean_of.decisions[0] in stated
    page = Path(curated.store, curated.run, "report.html").read_text(encoding="utf-8")
    card = Path(curated.store, curated.run, "final", "README.md").read_text(encoding="utf-8")
    assert escape(stated) in page and "length: bytes too low" in page
    assert markdown_text(stated) in card and "length: bytes too low" in card
    assert card == make_card(facts, report_content(facts))


def test_of_a_run_on_all_text_nothing_is_told(finished: Finished) -> None:
    facts = read_facts(Store(str(finished.store)), finished.run)
    assert facts.clean_of is None and len(report_content(facts).data.blocks) == 1

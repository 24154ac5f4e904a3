"""A report tells what was decided about a run's text, and what that is clean of."""

from pathlib import Path

from tests.trainer.curated_runs import KEPT_OUT
from tests.trainer.small_jobs import Finished
from trainer.common.formats import size
from trainer.common.tables import markdown_text
from trainer.data.decisions import read_decisions
from trainer.registry.facts import read_facts
from trainer.registry.report import make_card, report_content
from trainer.store.storage import Store


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
    assert f"decisions/{name}: " in block.note and "documents stay" in block.note


def test_page_and_card_state_what_the_text_is_clean_of(curated: Finished) -> None:
    store = Store(str(curated.store))
    facts = read_facts(store, curated.run)
    assert facts.clean_of is not None
    stated = facts.clean_of.describe()
    assert str(curated.store.parent / KEPT_OUT) in stated and facts.clean_of.decisions[0] in stated
    page = Path(curated.store, curated.run, "report.html").read_text(encoding="utf-8")
    card = Path(curated.store, curated.run, "final", "README.md").read_text(encoding="utf-8")
    assert stated in page and "length: bytes too low" in page
    assert markdown_text(stated) in card and "length: bytes too low" in card
    assert card == make_card(facts, report_content(facts))


def test_of_a_run_on_all_text_nothing_is_told(finished: Finished) -> None:
    facts = read_facts(Store(str(finished.store)), finished.run)
    assert facts.clean_of is None and len(report_content(facts).data.blocks) == 1

"""What differs between what was decided about the text of compared runs; the options stand among the settings that differ."""

from collections.abc import Sequence

from trainer.common.formats import NOTHING, count, size
from trainer.comparison.runs import ComparedRun
from trainer.data.decisions import decisions_behind
from trainer.records.fields import all_same
from trainer.report.account import Block
from trainer.report.tables import Table

Lines = dict[tuple[str, str], str]


def compare_curation(runs: Sequence[ComparedRun]) -> list[Block]:
    """The reasons for which not the same number of documents, or of bytes, stays or goes in all runs."""
    told = [_lines(run) for run in runs]
    places = sorted({place for each in told for place in each}, key=lambda place: (place[0], place[1] != "kept", place[1]))
    rows = [[*place, *(each.get(place, NOTHING) for each in told)] for place in places]
    different = [row for row in rows if not all_same(row[2:])]
    if not different:
        return []
    note = "Documents and bytes by what was decided of them."
    return [Block(note, Table(["Corpus", "Reason", *(run.letter for run in runs)], different, words=2))]


def _lines(run: ComparedRun) -> Lines:
    """Of each corpus and reason how many documents and bytes there are; nothing of text about which nothing was decided."""
    told: Lines = {}
    for shards in filter(None, (run.sources[ref["key"]] for ref in run.config["data"]["shards"])):
        corpus = shards.details["corpus"]
        for decisions in filter(None, map(run.sources.get, decisions_behind(shards))):
            for line in decisions.details["table"].get(corpus, ()):
                told[corpus, line["reason"]] = f"{count(line['documents'])} ({size(line['bytes'])})"
    return told

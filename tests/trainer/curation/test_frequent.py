"""N-grams of evaluation sets that drop many documents are named."""

import logging
from pathlib import Path

import pytest

from tests.support import small_job, write_config
from tests.trainer.chats import chat_values
from tests.trainer.curating import curated_job, decide, prose, write_documents
from trainer.common.progress import silent
from trainer.curation.print_decisions import print_decisions
from trainer.data.decisions import read_decisions
from trainer.kinds.pretraining.preflight import preflight
from trainer.preflight import curation
from trainer.store.storage import Store

LICENCE = "This program is free software; you can redistribute it and/or modify it under the terms of a licence"
TOLD = "This program is free software; you can redistribute it and/or modify"
LEAKED = " ".join(prose(5, 20))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A hundred documents of which eight have a licence that an evaluation set has too, and two another example."""
    documents = [" ".join(prose(1000 + number, 70)) for number in range(100)]
    for number in range(8):
        documents[10 * number + 3] = f"/* {LICENCE}. */ {documents[10 * number + 3]}"
    for number in (1, 2):
        documents[number] += f" {LEAKED}"
    asked = [{"question": "what does it do", "answer": LEAKED}, {"question": f"explain: {LICENCE}", "answer": "no"}]
    write_documents(tmp_path / "test.jsonl", asked)
    return write_documents(tmp_path / "raw" / "raw.jsonl", documents)


def kept_out(tmp_path: Path) -> dict[str, object]:
    file = {"paths": [str(tmp_path / "test.jsonl")], "format": "jsonl", "fields": ["question", "answer"]}
    return {"files": [file], "ngram": 12}


def test_an_n_gram_that_drops_many_documents_is_named_with_its_example(
    raw: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = curated_job(tmp_path / "store", {"one": str(raw)}, {"decontaminate": kept_out(tmp_path)})
    with caplog.at_level(logging.WARNING):
        made = decide(job)
    details = read_decisions(Store(job.store), made.key).details
    (line,) = details["kept_out"]["frequent"]
    example = f"{tmp_path}/test.jsonl#2 (question)"
    assert line == {"corpus": "one", "documents": 8, "of": 100, "words": TOLD, "example": example}
    said = f"corpus 'one': 8.0% of 100 documents are dropped because they share the words {TOLD!r} with {example}; if"
    assert [record.getMessage()[: len(said)] for record in caplog.records] == [said]
    print_decisions(job.store, None, None, None, None, 5, False)
    assert f"warning: {said}" in capsys.readouterr().out


def test_the_dry_run_names_it_too(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curation, "FROM_A_PIECE", 1000)
    corpora = [{"name": "docs", "paths": [str(raw)], "format": "jsonl"}]
    job = small_job(
        raw.parent, tmp_path / "store", data__corpora=corpora, data__curation={"decontaminate": kept_out(tmp_path)}
    )
    found = preflight(job, silent())
    (told,) = found.warnings
    assert told.startswith(
        f"in a sample of the text, corpus 'docs': 8.0% of 100 documents are dropped because they share the words "
        f"{TOLD!r} with "
    )
    assert any(told in line for line in found.lines())


def test_an_n_gram_of_any_message_of_a_conversation_is_named(raw: Path, tmp_path: Path) -> None:
    chat = chat_values(tmp_path, "s", "x", data__validation=[str(tmp_path / "chat.jsonl")], data__test=None)
    asked = [{"role": "user", "content": "what does it do"}, {"role": "assistant", "content": f"explain: {LICENCE}"}]
    write_documents(tmp_path / "chat.jsonl", [{"messages": asked}])
    jobs = {"jobs": [str(write_config(tmp_path / "tuning.yaml", chat))], "ngram": 12}
    made = decide(curated_job(tmp_path / "store", {"one": str(raw)}, {"decontaminate": jobs}))
    (line,) = read_decisions(Store(str(tmp_path / "store")), made.key).details["kept_out"]["frequent"]
    assert (line["words"], line["example"]) == (TOLD, f"{tmp_path}/chat.jsonl#1 (messages)")


def test_the_n_gram_may_lie_across_the_parts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.readers.PART_BYTES", 512)
    words = LICENCE.split()
    for number in range(4):
        lines = [" ".join(prose(10 * number + line, 6)) for line in range(40)]
        whole = "\n".join(lines)
        cut = whole.rfind("\n", 0, 512)
        (tmp_path / f"{number}.txt").write_text(
            f"{whole[: cut - 60]} {' '.join(words[:8])}\n{' '.join(words[8:])} {whole[cut:]}"
        )
    (tmp_path / "test.csv").write_text(f"text\n{LICENCE}\n")
    job = curated_job(
        tmp_path / "store", {},
        {"exact": None, "decontaminate": {"files": [{"paths": [str(tmp_path / "test.csv")], "format": "csv"}]}},
        corpora=[{"name": "one", "paths": [str(tmp_path / "[0-9].txt")], "format": "text"}],
        shards={"num_shards": 1, "piece_bytes": 2**20},
    )  # fmt: skip
    details = read_decisions(Store(job.store), decide(job).key).details
    assert sum(line["documents"] for line in details["kept_out"]["frequent"]) >= 4


def test_the_example_is_found_by_its_file_s_content_if_files_were_renamed_or_left_out_since(
    raw: Path, tmp_path: Path
) -> None:
    other = write_documents(tmp_path / "other.jsonl", [{"question": " ".join(prose(7, 30)), "answer": "no"}])
    copy = write_documents(tmp_path / "copy.jsonl", [{"question": " ".join(prose(7, 30)), "answer": "no"}])

    def example(names: list[Path], **changes: object) -> object:
        files = {"paths": [str(name) for name in names], "format": "jsonl", "fields": ["question", "answer"]}
        curation = {"decontaminate": {"files": [files], "ngram": 12}, **changes}
        job = curated_job(tmp_path / "store", {"one": str(raw)}, curation)
        (line,) = read_decisions(Store(job.store), decide(job).key).details["kept_out"]["frequent"]
        return line["words"], line["example"]

    assert example([copy, other, tmp_path / "test.jsonl"]) == (TOLD, f"{tmp_path}/test.jsonl#2 (question)")
    assert example([other, tmp_path / "test.jsonl"]) == (TOLD, f"{tmp_path}/test.jsonl#2 (question)")
    renamed = (tmp_path / "test.jsonl").rename(tmp_path / "a.jsonl")
    assert example([renamed, other]) == (TOLD, f"{renamed}#2 (question)")

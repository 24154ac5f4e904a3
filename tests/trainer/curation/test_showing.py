"""`headrace curation show`: what went, why, and what it was compared with."""

import json
import re
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.support import write_config
from tests.trainer.curating import curated_job, decide, job_on, prose, write_documents
from trainer.common.errors import ArtifactError, PipelineError
from trainer.curation import functions, showing
from trainer.curation.contamination import Overlap
from trainer.curation.descriptions import decision_rows
from trainer.curation.measures import Size
from trainer.curation.print_decisions import print_decisions, side_by_side
from trainer.data.decisions import read_decisions
from trainer.store.manifest import seal, unseal
from trainer.store.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with decisions about two corpora."""
    texts = [" ".join(prose(number, 120)) for number in range(12)]
    near = texts[2].split()
    near[60] = "otherwise"
    write_documents(tmp_path / "one.jsonl", [*texts[:6], texts[1] + " ", " ".join(near), "too short"])
    test = " ".join(prose(99, 20))
    write_documents(tmp_path / "two.jsonl", [*texts[6:], texts[0], f"{texts[11]} new {test}", "secret " * 30])
    (tmp_path / "test.txt").write_text(test + "\n")
    curation = {
        "near": {}, "decontaminate": {"files": [{"paths": [str(tmp_path / "test.txt")]}]},
        "filters": [
            {"kind": "length", "least_bytes": 50},
            {"kind": "pattern", "name": "secrets", "pattern": "secret", "most_matches": 3, "corpora": ["two"]},
        ],
    }  # fmt: skip
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("one", "two")}
    job = curated_job(tmp_path / "store", paths, curation, shards={"num_shards": 1, "piece_bytes": 1024})
    decide(job)
    return job.store


def shown(store: str, capsys: pytest.CaptureFixture[str], **words: Any) -> str:
    given = {"reason": None, "document": None, "corpus": None, "key": None, "examples": 5, "as_json": False, **words}
    print_decisions(store, **given)
    return capsys.readouterr().out


def test_the_table_tells_documents_and_bytes_by_reason(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(store, capsys)
    assert "14 of 18 documents kept" not in said
    rows = [line.split() for line in said.splitlines() if line.startswith("  ")]
    assert ["one", "kept", "6"] in [row[:3] for row in rows]
    assert {"duplicate", "contaminated"} <= {word for row in rows for word in row}
    assert (
        "a similarity of at least 0.8, or 95% contained in another document, by 5-grams; 14 bands of 5 minima find "
        "99.6% of" in said
    )
    assert "\none: near duplicates by similarity to the kept document: 0.9 to 0.95: 1\n" in said
    assert f"\ntwo: 1 duplicate of {tmp_path}/one.jsonl#1\n" in said
    table = json.loads(shown(store, capsys, as_json=True))["table"]
    assert sum(line["documents"] for each in table.values() for line in each) == 18


def test_an_example_says_what_it_was_compared_with(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(store, capsys, reason="exact duplicate")
    assert f"{tmp_path}/one.jsonl#7 of one: exact duplicate\n  {tmp_path}/one.jsonl#2 is kept instead" in said
    assert f"{tmp_path}/two.jsonl#7 of two: exact duplicate\n  {tmp_path}/one.jsonl#1 is kept instead" in said
    said = shown(store, capsys, reason="near duplicate", corpus="one")
    assert f"{tmp_path}/one.jsonl#8 of one: near duplicate\n  {tmp_path}/one.jsonl#3 is kept instead; the simil" in said
    assert "arity of their n-grams is 0.9" in said
    beside = [line.split(" | ") for line in said.splitlines() if " | " in line]
    assert beside[0] == ["  this document".ljust(60), "the original"]
    assert any("otherwise" in left for left, _ in beside) and not any("otherwise" in right for _, right in beside)
    assert "bytes 9, expected at least 50" in shown(store, capsys, reason="length: bytes too low")
    assert "matches 30, expected at most 3" in shown(store, capsys, reason="secrets: matches too high")
    said = shown(store, capsys, reason="contaminated")
    assert f"it shares '{' '.join(prose(99, 20)[:13])}' with {tmp_path}/test.txt#1 (text)\n" in said


def test_what_a_document_shares_is_told_with_the_example_that_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [" ".join(prose(number, 20)) for number in range(6)]
    write_documents(tmp_path / "raw.jsonl", [f"{each} {' '.join(prose(50 + n, 9))}" for n, each in enumerate(said)])
    asked = [{"question": said[0], "answer": ""}, {"question": "none", "answer": said[1]}]
    write_documents(tmp_path / "test.jsonl", asked)
    (tmp_path / "other.txt").write_text(f"{' '.join(prose(99, 20))}\n{said[2]}\n{said[0]}\n")
    chats = [{"prompt": " ".join(prose(77, 9)), "completion": "none"}, {"prompt": "none", "completion": said[4]}]
    write_documents(tmp_path / "chats.jsonl", chats)
    values = {
        "store": "s", "model": {"pretrained": "x"}, "training": {"max_steps": 1, "global_batch": 1},
        "data": {"task": "chat", "source": "jsonl", "train": [str(tmp_path / "chats.jsonl")]},
    }  # fmt: skip
    files = [
        {"paths": [str(tmp_path / "test.jsonl")], "format": "jsonl", "fields": ["question", "answer"]},
        {"paths": [str(tmp_path / "other.txt")]},
    ]
    kept_out = {"files": files, "jobs": [str(write_config(tmp_path / "chat.yaml", values))]}
    job = curated_job(tmp_path / "store", {"one": str(tmp_path / "raw.jsonl")}, {"decontaminate": kept_out})
    decide(job)
    told = {
        number: shown(job.store, capsys, document=f"{tmp_path}/raw.jsonl#{number + 1}").splitlines()[1]
        for number in range(6)
    }
    origins = {
        0: "test.jsonl#1 (question)",
        1: "test.jsonl#2 (answer)",
        2: "other.txt#2 (text)",
        4: "chats.jsonl#2 (messages)",
    }
    for number, origin in origins.items():
        assert told[number] == f"  it shares {' '.join(said[number].split()[:13])!r} with {tmp_path}/{origin}"
    assert told[3] == told[5] == "  no rule drops it"
    (name,) = Store(job.store).names("decisions")
    kept = read_decisions(Store(job.store), f"decisions/{name}").details["kept_out"]
    with pytest.raises(ArtifactError, match="the manifest of the decisions has no evaluation file of SHA-256"):
        showing.SharedWithExamples(Store(job.store), {**kept, "files": kept["files"][:1]}).describe(said[2].encode())
    (hashes,) = (tmp_path / "store" / "measures" / "overlaps").glob("*-examples.npz")
    hashes.unlink()
    showing._origins.cache_clear()
    assert "' with an evaluation set\n" in shown(job.store, capsys, document=f"{tmp_path}/raw.jsonl#1")


def test_a_document_without_a_number_to_compare_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"text": " ".join(prose(number, 20)), "score": number} for number in range(3)]
    records.append({"text": " ".join(prose(9, 20))})
    rule = {"kind": "score", "column": "score", "least_score": 1}
    job = job_on(tmp_path, records, {"filters": [rule]})
    decide(job)
    said = shown(job.store, capsys, reason="score score: no number")
    assert "a.jsonl#4 of one: score score: no number\n" in said
    assert "  it has no number in the column 'score'; documents without one are dropped\n" in said
    assert "score 0, expected at least 1" in shown(job.store, capsys, reason="score score: score too low")


@pytest.mark.parametrize(
    ("least", "score", "told"),
    [
        (0.9, 0.8999999999, "score 0.8999999999, expected at least 0.9"),
        (0.1234564, 0.1234563, "score 0.123456, expected at least 0.1234564"),
        (1234568, 1234567, "score 1234567, expected at least 1234568"),
    ],
)
def test_a_number_beside_a_threshold_is_told_apart_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], least: float, score: float, told: str
) -> None:
    records = [{"text": " ".join(prose(number, 20)), "score": each} for number, each in enumerate((score, 1e9))]
    rule = {"kind": "score", "column": "score", "least_score": least}
    job = job_on(tmp_path, records, {"filters": [rule]})
    decide(job)
    assert f"  {told}\n" in shown(job.store, capsys, reason="score score: score too low")


def test_the_table_tells_which_share_of_pairs_is_found_at_the_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_on(tmp_path, [" ".join(prose(number, 20)) for number in range(3)], {"near": {"least_similarity": 0.5}})
    decide(job)
    share = 1 - (1 - 0.5**5) ** 14
    assert f"14 bands of 5 minima find {share:.1%} of the pairs at 0.5;" in shown(job.store, capsys)


def test_a_figure_that_is_measured_in_another_way_today_is_told_as_such(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the measure has changed" not in shown(store, capsys, reason="length: bytes too low")
    for measure in (Size, Overlap):
        monkeypatch.setattr(measure, "version", 99)
    told = "the measure has changed since this was decided; today: "
    assert f"{told}bytes 9, expected at least 50" in shown(store, capsys, reason="length: bytes too low")
    assert f"{told}it shares " in shown(store, capsys, reason="contaminated")


def test_everything_about_one_document_is_told(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, reason in ((1, "kept"), (6, "kept"), (7, "exact duplicate"), (9, "length: bytes too low")):
        said = shown(store, capsys, document=f"{tmp_path}/one.jsonl#{number}")
        assert said.startswith(f"{tmp_path}/one.jsonl#{number} of one: {reason}\n"), said
    (document,) = json.loads(shown(store, capsys, document=f"{tmp_path}/one.jsonl#5", as_json=True))["documents"]
    assert document["text"] == " ".join(prose(4, 120))


def test_a_document_is_named_as_the_folder_that_one_is_in_finds_it(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert shown(store, capsys, document="./../one.jsonl#7").startswith(
        f"{tmp_path}/one.jsonl#7 of one: exact duplicate\n"
    )


def test_a_document_of_two_corpora_is_told_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path / "raw.jsonl", ["too short", *(" ".join(prose(number, 60)) for number in range(3))])
    curation = {"exact": None, "filters": [{"kind": "length", "least_bytes": 50, "corpora": ["two"]}]}
    job = curated_job(tmp_path / "store", {name: str(tmp_path / "raw.jsonl") for name in ("one", "two")}, curation)
    decide(job)
    said = shown(job.store, capsys, document="raw.jsonl#1")
    assert "raw.jsonl#1 of one: kept\n" in said and "raw.jsonl#1 of two: length: bytes too low\n" in said
    assert "of one" not in shown(job.store, capsys, document="raw.jsonl#1", corpus="two")
    assert not [line for line in shown(job.store, capsys, corpus="two").splitlines() if line.startswith("  one ")]


def test_documents_are_shown_with_the_decisions_that_they_are_from(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (key,) = [f"decisions/{path.name}" for path in Path(store, "decisions").iterdir()]
    for asked in ({"reason": "exact duplicate"}, {"document": "one.jsonl#1"}):
        assert shown(store, capsys, **asked).endswith(f"\ndecided in {key}\n")


def test_what_was_not_decided_about_is_not_shown(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(path.read_text().replace("too short", "too brief"))
    with pytest.raises(PipelineError, match="has changed since its documents were decided; run the job again"):
        shown(store, capsys, document=f"{path}#9")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"corpus": "none"}, "has no corpus 'none'; it has one, two"),
        ({"document": "one.jsonl#1", "corpus": "two"}, "has no file 'one.jsonl'"),
        ({"document": "none.jsonl#1"}, "has no file 'none.jsonl'"),
        ({"document": "one.jsonl"}, "expected PATH#N"),
        ({"document": "one.jsonl#99"}, "has 9 documents, counted from 1; there is no 99"),
        ({"reason": "boredom"}, "has no reason 'boredom'; "),
        ({"reason": "kep"}, "has no reason 'kep'; did you mean 'kept'?"),
        ({"reason": "kept", "corpus": "none"}, "has no corpus 'none'; it has one, two"),
        ({"key": "decisions/text-0123456789abcdef"}, "holds no decisions"),
    ],
)
def test_what_is_not_there_is_said(
    store: str, capsys: pytest.CaptureFixture[str], words: dict[str, str], says: str
) -> None:
    with pytest.raises(PipelineError, match=re.escape(says)):
        shown(store, capsys, **words)


def test_decisions_that_are_not_finished_hide_no_others(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = Path(store) / "decisions" / "text-0123456789abcdef"
    unfinished.mkdir()
    (unfinished / "pieces.json").write_text("{}")
    assert "documents kept" in shown(store, capsys)


def test_the_table_is_told_without_the_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "removed.py").write_text("def judge(text):\n    return len(text) > 9\n")
    raw = write_documents(tmp_path / "one.jsonl", [" ".join(prose(1, 40)), "short"])
    rule = {"kind": "function", "function": "removed:judge"}
    job = curated_job(tmp_path / "store", {"one": str(raw)}, {"exact": None, "filters": [rule]})
    decide(job)
    (tmp_path / "removed.py").unlink()
    monkeypatch.delitem(sys.modules, "removed")
    functions.load_function.cache_clear()
    assert "removed:judge: value too low" in shown(job.store, capsys)
    assert f"{raw}#1 of one: kept" in shown(job.store, capsys, document=f"{raw}#1")
    told = f"{raw}#2 of one: removed:judge: value too low\n  its value was not at least 1; functions that a store names"
    assert told in shown(job.store, capsys, document=f"{raw}#2")
    assert told in shown(job.store, capsys, reason="removed:judge: value too low")


def test_no_function_that_a_store_names_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "harmless.py").write_text("def judge(text):\n    return False if 'touch' in text else True\n")
    raw = write_documents(tmp_path / "one.jsonl", [f"touch {tmp_path}/called", "another text"])
    rule = {"kind": "function", "function": "harmless:judge"}
    job = curated_job(tmp_path / "store", {"one": str(raw)}, {"exact": None, "filters": [rule]})
    key = decide(job).key
    path = Path(job.store, key, "manifest.json")
    values = unseal(json.loads(path.read_text()))
    values["details"] = json.loads(json.dumps(values["details"]).replace("harmless:judge", "os:system"))
    path.write_text(json.dumps(seal(values)))
    assert "os:system: value too low" in shown(job.store, capsys, reason="os:system: value too low")
    assert not (tmp_path / "called").exists()


def test_a_corpus_that_loses_much_and_a_cluster_that_is_large_are_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = [" ".join(prose(number, 60)) for number in range(20)]
    write_documents(tmp_path / "some.jsonl", [*texts, *(f"{texts[4]}{' ' * number}" for number in range(1, 12))])
    write_documents(tmp_path / "much.jsonl", [*texts[:11], *(" ".join(prose(number, 60)) for number in range(50, 57))])
    job = curated_job(
        tmp_path / "store", {name: str(tmp_path / f"{name}.jsonl") for name in ("some", "much")}, {"near": {}}
    )
    decide(job)
    expected = [
        "corpus 'much': 38.9% of its documents are kept; most are dropped as 'exact duplicate'; `headrace curation "
        "show` lists examples",
        f"corpus 'some': 11 of its documents (35.5%) are duplicates of one, {tmp_path}/some.jsonl#5",
    ]
    assert [record.getMessage() for record in caplog.records] == expected
    said = shown(job.store, capsys)
    assert all(f"warning: {told}\n" in said for told in expected)


def test_a_corpus_of_which_one_document_goes_does_not_seem_to_be_kept_whole() -> None:
    lines = [{"reason": reason, "documents": number, "bytes": 9} for reason, number in (("kept", 99_999), ("short", 1))]
    rows = decision_rows({"table": {"one": lines, "two": lines[:1]}})
    assert [row["share"] for row in rows] == ["99.999 %", "0.001 %", "100 %"]


def test_texts_are_shown_from_their_first_difference_on() -> None:
    words = prose(1, 2000)
    other = [*words[:1500], "otherwise", *words[1501:]]
    header, place, *rest = side_by_side(" ".join(other), " ".join(words))
    assert header.split(" | ")[1] == "the original"
    assert (
        len(set(place.split(" | "))) == 2
        and place.split(" | ")[1] == f"from character {len(' '.join(words[:1494])) + 2:,} on"
    )
    left, right = ("".join(part) for part in zip(*(line.partition(" | ")[::2] for line in rest), strict=True))
    assert "otherwise" in left and words[1500] in right and "otherwise" not in right
    assert list(side_by_side("a  b", "a b")) == ["  they differ only in white space", ""]
    chinese = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(4000))
    mine, its = zip(
        *(line.partition(" | ")[::2] for line in side_by_side(chinese[:3000] + "X" + chinese[3001:], chinese)),
        strict=True,
    )
    assert "X" in "".join(mine) and chinese[3000] in "".join(its) and chinese[3000] not in "".join(mine)


@pytest.mark.deep
def test_texts_of_any_length_and_form_are_shown_in_few_lines() -> None:
    hostile = ["x\n\n" * 50_000, "y\n\n" * 50_000, "z" * 4_000_000, " ".join(prose(2, 100_000))]
    for one, another in permutations(hostile, 2):
        assert len(list(side_by_side(one, another))) <= 32

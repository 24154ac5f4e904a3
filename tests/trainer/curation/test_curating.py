"""Decisions about raw text: what stays, why the rest goes, and that nothing but the text and the options matters."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.depth import once
from tests.s3 import S3Server
from tests.support import digests, flipped, settled
from tests.trainer.curating import Here, curated_job, decide, job_on, originals_of, prose, reasons_of, write_documents
from tests.trainer.made import prepare
from trainer.common.errors import ArtifactError, CorpusError
from trainer.common.progress import silent
from trainer.config.corpora import CorpusConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.units import UNIT_BYTES, divide, is_intact
from trainer.data.decisions import open_decisions, read_decisions
from trainer.data.pieces import Piece
from trainer.data.readers import read_documents
from trainer.data.shards import KIND, open_shards
from trainer.data.sources import find_pieces
from trainer.kinds.pretraining.kind import find_prepared
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store

EXACT, NEAR = "exact duplicate", "near duplicate"


def arrays(folder: Path) -> dict[str, str]:
    """The digests of a folder's files of arrays: its manifest has a time."""
    return {name: digest for name, digest in digests(folder).items() if name.endswith(".npz")}


def text(seed: int, words: int = 80) -> str:
    return " ".join(prose(seed, words))


def changed(seed: int, places: int, words: int = 80) -> str:
    """A text of which some words, far from each other, are others."""
    found = prose(seed, words)
    for place in range(places):
        found[(place + 1) * words // (places + 1)] = f"other{place}"
    return " ".join(found)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two corpora; what is planted is named in the tests below."""
    folder = tmp_path / "raw"
    texts = [text(number) for number in range(40)]
    write_documents(folder / "one" / "a.jsonl", texts[:20])
    write_documents(
        folder / "one" / "b.jsonl", ["  " + texts[3].replace(" ", "\n", 7), *texts[20:30], changed(5, 1), "few words"]
    )
    write_documents(folder / "two" / "c.jsonl", [texts[7], *texts[30:], texts[31], "x" * 500])
    return folder


def job_of(raw: Path, store: Path, curation: dict[str, Any] | None = None, **data: Any) -> PrepareJob:
    options = {"near": {}, "filters": [{"kind": "length", "least_bytes": 50}]} if curation is None else curation
    return curated_job(store, {"one": f"{raw}/one/*.jsonl", "two": f"{raw}/two/*.jsonl"}, options, **data)


def test_what_is_planted_goes_with_its_reason_and_the_first_of_each_kind_stays(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    made = decide(job)
    one, two = (reasons_of(job, made.key, name) for name in ("one", "two"))
    assert one == ["kept"] * 20 + [EXACT] + ["kept"] * 10 + [NEAR, "length: bytes too low"]
    assert two == [EXACT] + ["kept"] * 10 + [EXACT, "kept"]
    assert originals_of(job, made.key, "one") == {20: 3, 31: 5}
    assert originals_of(job, made.key, "two") == {0: 7, 11: len(one) + 2}
    table = read_decisions(Store(job.store), made.key).details["table"]
    size = sum(len(json.loads(line)["text"]) for line in (raw / "one" / "b.jsonl").read_text().splitlines()[-1:])
    assert {"reason": "length: bytes too low", "documents": 1, "bytes": size} in table["one"]
    assert [line["documents"] for line in table["two"]] == [11, 2]


def test_a_second_time_nothing_is_read_or_written(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    made = decide(job)
    before = arrays(tmp_path / "store" / "decisions")
    again = decide(job)
    assert again.reused and again.key == made.key
    assert arrays(tmp_path / "store" / "decisions") == before


@pytest.mark.workers
def test_decisions_depend_on_neither_workers_nor_units(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job_of(raw, tmp_path / "one", workers=1), job_of(raw, tmp_path / "three", workers=3)]
    first = decide(jobs[0])
    monkeypatch.setattr("trainer.curation.units.UNIT_BYTES", 2000)
    monkeypatch.setattr("trainer.curation.shared_keys.SLICE_KEYS", 90)
    assert decide(jobs[1]).key == first.key
    assert arrays(tmp_path / "one" / first.key) == arrays(tmp_path / "three" / first.key)
    assert len(list((tmp_path / "three" / "measures").rglob("size-*/*.npz"))) > 2


def test_a_corpus_of_many_units_has_them_in_folders_and_takes_over_what_was_measured_in_fewer_or_more(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    job = job_of(raw, store)
    read: list[str] = []
    monkeypatch.setattr(
        "trainer.curation.units.read_curated",
        lambda piece, corpus, *rest, **more: read.append(piece.path) or read_documents(piece, corpus, *rest[:1]),
    )
    made = decide(job)
    expected, first = arrays(store / made.key), len(read)
    monkeypatch.setattr("trainer.curation.units.SUBFOLDERS", 2)
    for unit_bytes, folders in ((2000, True), (4000, True), (10**9, False), (2000, True)):
        monkeypatch.setattr("trainer.curation.units.UNIT_BYTES", unit_bytes)
        shutil.rmtree(store / "decisions")
        before = {path for path in (store / "measures").rglob("*.npz") if "pairs" not in path.parts}
        assert decide(job).key == made.key and arrays(store / made.key) == expected
        new = {path for path in (store / "measures").rglob("*.npz") if "pairs" not in path.parts} - before
        in_folders = {path.parent.name for path in new if re.fullmatch(r"\d{5}", path.parent.name)}
        assert in_folders <= {"00000", "00001"} and (not folders or in_folders or not new)
    assert first and len(read) == first, "nothing is measured again"


def test_units_are_no_larger_in_a_larger_corpus() -> None:
    """Of 256 GiB, of which the pieces alone are made up."""
    corpus = CorpusConfig.model_validate({"name": "made", "paths": ["made"]})
    pieces = [Piece(str(number), str(number), 0, 0, 1, UNIT_BYTES // 4, True, "", 1) for number in range(2**16)]
    units = divide(corpus, pieces, None, ())
    sizes = [unit.raw_bytes for unit in units]
    assert 2**13 < len(sizes) <= 2**14 and sum(sizes) == 2**38
    assert max(sizes) < 8 * UNIT_BYTES, "as chance deals so many quarters"


def test_another_threshold_measures_nothing_anew(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    decide(job_of(raw, store))
    before = arrays(store / "measures")
    job = job_of(raw, store, {"near": {}, "filters": [{"kind": "length", "least_bytes": 620}]})
    reasons = reasons_of(job, decide(job).key, "one")
    assert reasons.count("length: bytes too low") > 1
    after = arrays(store / "measures")
    assert {name for name in after.keys() - before.keys() if "/pairs/" not in f"/{name}"} == set()


def test_a_changed_file_is_measured_alone(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(settled(raw), tmp_path / "store")
    decide(job)
    with open(raw / "two" / "c.jsonl", "a") as file:
        file.write(json.dumps({"text": text(2)}) + "\n")
    read: list[str] = []
    monkeypatch.setattr(
        "trainer.curation.units.read_curated",
        lambda piece, corpus, *rest, **more: read.append(piece.path) or read_documents(piece, corpus, *rest[:1]),
    )
    made = decide(job)
    assert {Path(path).name for path in read} == {"c.jsonl"}
    assert reasons_of(job, made.key, "two")[-1] == EXACT
    clean = job_of(raw, tmp_path / "new")
    assert reasons_of(job, made.key, "one") == reasons_of(clean, decide(clean).key, "one")


def test_a_changed_file_is_measured_beside_a_collection_that_removes_what_was_measured(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older files are gone once they were looked at."""
    job = job_of(raw, tmp_path / "store")
    decide(job)
    with open(raw / "two" / "c.jsonl", "a") as file:
        file.write(json.dumps({"text": text(2)}) + "\n")
    old = {
        f"measures/{path.relative_to(tmp_path / 'store' / 'measures')}"
        for path in tmp_path.rglob("measures/two*/*/*.npz")
    }
    read_bytes = Store.read_bytes

    def read_and_removed(store: Store, key: str, *stretch: int) -> bytes:
        found = read_bytes(store, key, *stretch)
        if key in old:
            store.delete(key)
        return found

    monkeypatch.setattr(Store, "read_bytes", read_and_removed)
    reasons = reasons_of(job, decide(job).key, "two")
    assert old and not any((tmp_path / "store" / key).exists() for key in old)
    monkeypatch.undo()
    monkeypatch.setattr("trainer.curation.curate.Workers", Here)
    clean = job_of(raw, tmp_path / "new")
    assert reasons == reasons_of(clean, decide(clean).key, "two")


def test_shards_are_those_of_the_text_that_stays(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store", workers=2)
    data = prepare(job, silent())
    assert find_prepared(job) is not None
    kept: dict[str, list[str]] = {}
    for corpus, folder in (("one", "one"), ("two", "two")):
        lines = [line for path in sorted((raw / folder).glob("*.jsonl")) for line in path.read_text().splitlines()]
        found = [json.loads(line)["text"] for line in lines]
        reasons = reasons_of(job, decide(job).key, corpus)
        kept[corpus] = [each for each, reason in zip(found, reasons, strict=True) if reason == "kept"]
        write_documents(tmp_path / "kept" / folder / "all.jsonl", kept[corpus])
    plain = job_of(
        tmp_path / "kept", tmp_path / "plain", {}, tokenizer={"path": str(tmp_path / "store" / data.tokenizer.key)}
    )
    plain = plain.model_copy(update={"data": plain.data.model_copy(update={"curation": None})})
    others = prepare(plain, silent())
    for ref, other in zip(data.shards, others.shards, strict=True):
        own, expected = open_shards(Store(job.store), ref.key), open_shards(Store(plain.store), other.key)
        assert sorted(documents(own)) == sorted(documents(expected))
    manifest = read_manifest(Store(job.store), data.shards[0].key, KIND)
    assert manifest is not None and manifest.inputs["decisions"].key == decide(job).key


def documents(shards: Any) -> list[tuple[int, ...]]:
    """All documents of a set, in tokens."""
    found = []
    for side in (shards.train, shards.validation):
        for number, length in enumerate(side.lengths):
            tokens = side.read(number, 0, length)
            ends = np.flatnonzero(tokens == shards.details["eos_id"]) + 1
            found += [tuple(part.tolist()) for part in np.split(tokens, ends)[:-1]]
    return found


def test_without_curation_or_where_all_stays_shards_are_the_same(raw: Path, tmp_path: Path) -> None:
    texts = write_documents(tmp_path / "plain" / "a.jsonl", [text(number) for number in range(30)])
    corpora = {"one": str(texts)}
    job = curated_job(tmp_path / "store", corpora, {})
    without = job.model_copy(update={"data": job.data.model_copy(update={"curation": None})})
    assert prepare(job, silent()).shards[0].key == prepare(without, silent()).shards[0].key


def test_a_set_is_kept_where_other_decisions_change_nothing_in_it(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    first = prepare(job, silent())
    other = job_of(raw, tmp_path / "store", {"near": {"bands": 15}, "filters": [{"kind": "length", "least_bytes": 51}]})
    second = prepare(other, silent())
    assert [ref.key for ref in second.shards] == [ref.key for ref in first.shards]
    assert all(ref.reused for ref in second.shards)


@pytest.mark.parametrize("piece_bytes", once(1024, 2000))
def test_a_document_that_is_cut_between_pieces_ends_where_the_last_part_that_stays_does(
    tmp_path: Path, piece_bytes: int
) -> None:
    parts = [" ".join(prose(seed, 300)) for seed in (1, 2, 3)]
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(parts) + "\n")
    (folder / "b.txt").write_text("\n".join([parts[2], parts[1]]) + "\n")
    corpora = [{"name": "one", "paths": [f"{folder}/*.txt"], "format": "text"}]
    job = curated_job(
        tmp_path / "store", {}, {"near": {}}, corpora=corpora, validation_fraction=0.0,
        shards={"num_shards": 1, "piece_bytes": piece_bytes},
    )  # fmt: skip
    data = prepare(job, silent())
    shards = open_shards(Store(job.store), data.shards[0].key)
    decided = open_decisions(Store(job.store), decide(job).key, "one")
    ends = int((shards.train.read(0, 0, shards.train.lengths[0]) == shards.details["eos_id"]).sum())
    kept = decided.reasons == 0
    assert 0 < kept.sum() < len(kept), "some parts go"
    lasts = np.cumsum(decided.counts) - 1  # text: a part a piece
    files = [Path(piece.key).name for piece in decided.pieces]
    runs = sum(
        bool(kept[at] and (at == lasts[-1] or not kept[at + 1] or files[number + 1] != files[number]))
        for number, at in enumerate(lasts)
    )
    assert ends == runs


def test_every_flipped_bit_of_decisions_is_found(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    made = decide(job)
    for path in sorted((tmp_path / "store" / made.key).glob("*.npz")):
        intact = path.read_bytes()
        for bit in range(0, 8 * len(intact), 97):
            path.write_bytes(flipped(intact, bit))
            with pytest.raises(ArtifactError, match="does not match its checksum"):
                open_decisions(Store(job.store), made.key, path.stem)
        path.write_bytes(intact)


def test_every_flipped_bit_of_a_measure_is_found_and_it_is_measured_anew(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    made = decide(job)
    store = Store(job.store)
    expected = arrays(tmp_path / "store" / made.key)
    files = {path: path.read_bytes() for path in (tmp_path / "store" / "measures").rglob("*.npz")}
    for number, (path, intact) in enumerate(files.items()):
        for bit in range(number, 8 * len(intact), max(1, 8 * len(intact) // 40)):
            path.write_bytes(flipped(intact, bit))
            assert not is_intact(store, path.relative_to(tmp_path / "store").as_posix())
        path.write_bytes(flipped(intact, number))
    (tmp_path / "store" / made.key / "manifest.json").unlink()
    decide(job)
    assert arrays(tmp_path / "store" / made.key) == expected
    assert {path: path.read_bytes() for path in files} == files


def test_damaged_decisions_keep_nobody_from_making_them_anew(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    prepare(job, silent())
    (tmp_path / "store" / decide(job).key / "one.npz").unlink()
    assert find_prepared(job) is None
    prepare(job, silent())
    assert find_prepared(job) is not None


def test_decisions_about_other_raw_files_are_refused(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    made = decide(job)
    store = Store(job.store)
    decided = open_decisions(store, made.key, "one")
    with pytest.raises(ArtifactError, match=r"decisions/text-\w+ were made for other raw files than the present ones"):
        decided.of_pieces(find_pieces(store, job.data.corpora[1], 4096), job.data.corpora[1])


def test_thresholds_that_nothing_passes_are_an_error_with_the_largest_reasons(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store", {"filters": [{"kind": "length", "most_bytes": 1}]})
    with pytest.raises(CorpusError, match=r"'one': data.curation drops all 33 documents: 33 as 'length: bytes too"):
        decide(job)
    assert not (tmp_path / "store" / "decisions").exists()


@pytest.mark.workers
def test_a_function_decides_and_another_text_of_it_decides_anew(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "choosing.py").write_text("def choose(text):\n    return not text.startswith('x')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    job = job_of(raw, tmp_path / "store", {"filters": [{"kind": "function", "function": "choosing:choose"}]})
    made = decide(job)
    assert reasons_of(job, made.key, "two")[-1] == "choosing:choose: value too low"
    (tmp_path / "choosing.py").write_text("def choose(text):\n    return True\n")
    assert decide(job).key != made.key


def test_a_score_beside_the_text_is_compared(tmp_path: Path) -> None:
    scores = [1.0, 2, "3", None, "none", 10**400]
    records = [{"text": text(number), "score": score} for number, score in enumerate(scores)]
    rule = {"kind": "score", "column": "score", "least_score": 2}
    job = job_on(tmp_path, [*records, {"text": text(9)}], {"filters": [rule]})
    assert reasons_of(job, decide(job).key, "one") == [
        "score score: score too low", "kept", "kept", *["score score: no number"] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "has"), [("jsonl", "has the columns text, score"), ("csv", "has the columns text, score"),
                        ("parquet", "has the columns text, score"), ("lines", "is of the format lines, which has no "
                                                                              "columns")]
)  # fmt: skip
def test_a_column_of_which_no_document_has_a_number_is_an_error(tmp_path: Path, ending: str, has: str) -> None:
    records = [{"text": text(number), "score": number} for number in range(3)]
    path = write_documents(tmp_path / "a.jsonl", ["", *records])
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif ending == "csv":
        path.write_text("text,score\n" + "".join(f"{each['text']},{each['score']}\n" for each in records))
    filters = [{"kind": "length", "least_bytes": 1}, {"kind": "score", "column": "quality", "least_score": 2}]
    corpora = [{"name": "one", "paths": [str(path)], "format": ending}]
    with pytest.raises(
        CorpusError, match=rf"corpus 'one': no document has a number in the column 'quality'.*a.jsonl {has}; c"
    ):
        decide(curated_job(tmp_path / "store", {}, {"filters": filters}, corpora=corpora))


def test_a_pattern_drops_what_matches_or_what_does_not(tmp_path: Path) -> None:
    rules = [
        {"kind": "pattern", "name": "secrets", "pattern": r"\bsecret\b", "most_matches": 1},
        {"kind": "pattern", "name": "letters", "pattern": "e", "least_matches": 1},
    ]
    job = job_on(tmp_path, ["a secret here", "nothing", "secret secret"], {"filters": rules})
    assert reasons_of(job, decide(job).key, "one") == ["kept", "letters: matches too low", "secrets: matches too high"]


@pytest.mark.deep
def test_on_a_bucket_the_same_is_decided(raw: Path, tmp_path: Path, s3: S3Server) -> None:
    here, there = (
        job_of(raw, tmp_path / "store"),
        job_of(raw, Path("unset")).model_copy(update={"store": s3.new_store()}),
    )
    made = decide(here)
    assert decide(there).key == made.key
    for corpus in ("one", "two"):
        assert reasons_of(there, made.key, corpus) == reasons_of(here, made.key, corpus)
    assert decide(there).reused
    assert [ref.fingerprint for ref in prepare(there, silent()).shards] == [
        ref.fingerprint for ref in prepare(here, silent()).shards
    ]


def test_an_odd_name_beside_measures_is_passed_over(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    decide(job)
    for folder in (tmp_path / "store" / "measures").glob("*/*"):
        (folder / ".nfs0001").write_bytes(b"x") if folder.is_dir() else None
    write_documents(raw / "two" / "d.jsonl", [text(77)])
    assert reasons_of(job, decide(job).key, "two")[-1] == "kept"

"""Preparation in real worker processes: only missing work is done, and the result is always the same bytes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests import ROOT
from tests.depth import once
from tests.trainer.made import prepare
from tests.trainer.preparing import SHARDS, content, job_of, run, set_folder, shard_bytes, stamps, write_old
from tests.trainer.raw_files import pieces_of, refuse, sources
from tests.trainer.shard_files import read_side, whole
from trainer.common.errors import ArtifactError, TokenizerError
from trainer.common.progress import Progress, Update
from trainer.data.decisions import Reader
from trainer.data.pieces import assigned
from trainer.data.readers import read_documents
from trainer.data.shards import ENDINGS, KIND, is_held_out, open_shards
from trainer.data.tokenization import deal, shard_manifests
from trainer.kinds.pretraining.kind import find_prepared
from trainer.models.tokenizer import TokenizerInfo, load_tokenizer
from trainer.store.manifest import read_manifest, write_manifest
from trainer.store.storage import Store


def test_a_second_preparation_does_nothing(code: Path, own: Path) -> None:
    run(job_of(code, own))  # holds what it uses again
    before = stamps(own)
    prepared = run(job_of(code, own))
    assert prepared.tokenizer.reused
    assert [shards.reused for shards in prepared.shards] == [True]
    assert stamps(own) == before


def test_all_shards_together_hold_every_document_once(code: Path, clean: Path) -> None:
    prepared = run(job_of(code, clean))
    info = load_tokenizer(Store(str(clean)), prepared.tokenizer.key)
    tokenizer = Tokenizer.from_str(info.json)
    texts: dict[str, list[bytes]] = {"shard": [], "validation": []}
    for side, number in product(texts, range(SHARDS)):
        for ids in read_side(clean / prepared.shards[0].key, side, number, "<u2").entries:
            assert info.eos_id not in ids[:-1]
            texts[side].append(tokenizer.decode([token for token in ids if token != info.eos_id]).encode())
    corpus, pieces = pieces_of(f"{code}/*.py", 4096, format="source")
    documents = [document.text for piece in pieces for document in read_documents(piece, corpus, refuse)]
    for side, held_out in (("shard", False), ("validation", True)):
        assert sorted(texts[side]) == sorted(text for text in documents if is_held_out(text, 0.1) is held_out)
        assert texts[side]


def test_the_manifest_counts_what_the_shards_hold(code: Path, clean: Path) -> None:
    prepared = run(job_of(code, clean))
    store = Store(str(clean))
    (manifest,) = shard_manifests(store, prepared)
    opened = open_shards(store, prepared.shards[0].key)
    train, held_out = whole(opened.train), whole(opened.validation)
    assert list(map(len, train)) == opened.train.lengths == manifest.details["shard_tokens"]
    assert sum(map(len, held_out)) == manifest.details["totals"]["validation_tokens"] > 0
    ends = sum(int((shard == manifest.details["eos_id"]).sum()) for shard in [*train, *held_out])
    corpus, pieces = pieces_of(f"{code}/*.py", 4096, format="source")
    sides = {piece: is_held_out(text, 0.1) for piece in pieces for text, *_ in read_documents(piece, corpus, refuse)}
    groups = [group for group in assigned(pieces, SHARDS) if group]
    broken_off = [not a.precedes(b) or sides[a] != sides[b] for group in groups for a, b in pairwise(group)]
    assert ends == len(groups) + sum(broken_off) > len(sources())
    assert manifest.details["totals"]["raw_bytes"] == sum(len(text.encode()) for text in sources().values())
    assert manifest.details["engine"] == "gigatoken"
    names = [f"{side}-{n:05d}.{e}" for side in ("shard", "validation") for n in range(SHARDS) for e in ENDINGS]
    assert {record.name for record in manifest.files} >= {"shard-00000.json", "sources.json", *names}


def test_progress_reaches_the_size_of_files_of_which_the_texts_are_a_part(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text[:400], "other": text}) + "\n" for text in sources().values()]
    (tmp_path / "a.jsonl").write_text("".join(rows), encoding="utf-8")
    corpora = [{"name": "code", "paths": [f"{tmp_path}/a.jsonl"], "format": "jsonl"}]
    shown: dict[str, Update] = {}
    progress = Progress(lambda update: shown.update({update.title: update}), 0.0)
    prepare(job_of(tmp_path, tmp_path / "store", corpora=corpora), progress)
    size = (tmp_path / "a.jsonl").stat().st_size
    assert (shown["tokenize code"].done, shown["tokenize code"].total) == (size, size)


def test_what_was_prepared_is_found_without_preparing(code: Path, clean: Path, tmp_path: Path) -> None:
    prepared = run(job_of(code, clean))
    assert find_prepared(job_of(code, clean)) == prepared
    assert find_prepared(job_of(code, tmp_path / "empty")) is None
    assert find_prepared(job_of(code, clean, validation_fraction=0.2)) is None


def test_the_number_of_workers_changes_no_byte(code: Path, clean: Path, tmp_path: Path) -> None:
    first, second = job_of(code, clean), job_of(code, tmp_path, workers=2)
    assert content(set_folder(second, run(second))) == content(set_folder(first, run(first)))


def test_the_engine_changes_no_byte(code: Path, clean: Path, tmp_path: Path) -> None:
    first = job_of(code, clean)
    second = job_of(code, tmp_path, tokenizer={"vocab_size": 400, "engine": "tokenizers"})
    assert shard_bytes(set_folder(second, run(second))) == shard_bytes(set_folder(first, run(first)))


def change_one(raw: Path) -> None:
    write_old(raw / "heapq.py", sources()["heapq.py"].replace("heap", "heaps", 1))


def add_one(raw: Path) -> None:
    write_old(raw / "new.py", "print('something new')\n")


def remove_one(raw: Path) -> None:
    (raw / "abc.py").unlink()


@pytest.mark.parametrize("change", once(change_one, add_one, remove_one))
def test_one_changed_file_remakes_its_shard_only(
    change: Callable[[Path], None], code: Path, own: Path, tmp_path: Path
) -> None:
    raw = Path(shutil.copytree(code, tmp_path / "code"))
    job = job_of(raw, own, shards={"num_shards": SHARDS})
    first = run(job)
    old = set_folder(job, first)
    before = stamps(old)
    change(raw)
    second = run(job)
    new = set_folder(job, second)
    assert new != old
    assert second.tokenizer == first.tokenizer.model_copy(update={"reused": True})
    remade = {name for name, stamp in stamps(new).items() if name.endswith(".bin") and before[name] != stamp}
    assert len({name[-9:] for name in remade}) == 1
    assert stamps(old) == before
    elsewhere = job_of(raw, tmp_path / "elsewhere", shards={"num_shards": SHARDS})
    shutil.copytree(own / "tokenizers", tmp_path / "elsewhere" / "tokenizers")
    assert content(set_folder(elsewhere, run(elsewhere))) == content(new)


def test_a_file_cut_off_where_a_piece_ends_is_made_anew_though_no_byte_of_that_piece_changed(tmp_path: Path) -> None:
    data = job_of(tmp_path, tmp_path).data
    tokenizer = TokenizerInfo("{}", "", 0, 399)
    path = tmp_path / "a.py"
    path.write_text(sources()["heapq.py"])
    names = []
    for _ in range(2):
        corpus, pieces = pieces_of(path, 1024, format="source")
        first = [piece for piece in pieces if piece.index == 0]
        names.append([shard.fingerprint for shard in deal(first, Reader(corpus, None, {}), data, tokenizer)])
        path.write_bytes(path.read_bytes()[: pieces[0].end])
    assert names[0] != names[1]


def test_shards_of_text_that_the_fast_engine_put_into_nfc_are_not_reused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(sources()["heapq.py"])
    data = job_of(tmp_path, tmp_path).data
    corpus, pieces = pieces_of(tmp_path / "a.py", 1024, format="source")
    names = []
    for kind in (None, {"type": "Prepend"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}):
        tokenizer = TokenizerInfo(json.dumps({"normalizer": kind}), "", 0, 399)
        names.append([shard.fingerprint for shard in deal(pieces, Reader(corpus, None, {}), data, tokenizer)])
    assert names[0] == names[1], "only where it matters"
    assert names[0] != names[2]


def test_shards_of_another_tokenizer_or_none_are_refused(code: Path, own: Path) -> None:
    prepared = run(job_of(code, own))
    store = Store(str(own))
    key = prepared.shards[0].key
    manifest = read_manifest(store, key, KIND)
    assert manifest is not None
    other = manifest.model_copy(update={"details": {**manifest.details, "tokenizer_sha256": "0" * 64}})
    write_manifest(store, key, other)
    with pytest.raises(TokenizerError, match=r"was tokenized with tokenizers/bpe-.*prepare the data again"):
        shard_manifests(store, prepared)
    store.delete(key)
    with pytest.raises(ArtifactError, match="holds no published shards; run prepare-data first"):
        shard_manifests(store, prepared)


@pytest.mark.deep
def test_workers_do_not_run_the_program_that_they_are_started_from(code: Path, tmp_path: Path) -> None:
    """One without `if __name__ == "__main__"`, so that a worker which imported it would prepare as well."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
with open({str(tmp_path / "ran")!r}, "a") as file:
    file.write("once ")
from tests.trainer.preparing import job_of, run
from pathlib import Path
run(job_of(Path({str(code)!r}), Path({str(tmp_path / "store")!r}), workers=2))
"""
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, program], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "ran").read_text() == "once "
    assert len(list((tmp_path / "store").glob("shards/*/shard-*.bin"))) == SHARDS

"""Sealed files: any change, another place and a checksum that is gone are noticed."""

import hashlib
import json
from typing import Any

import pytest

from tests.support import flipped
from trainer.common.errors import ArtifactError
from trainer.records.sealed import read_listed, read_sealed, seal_line, sealed_number, unseal_line, write_sealed
from trainer.records.shapes import remedy_of
from trainer.store.storage import Store

KEY, NOTES = "runs/one/plan.json", "runs/one/notes.json"
"""One whose values are held against what a plan is, and one whose are not."""
VALUES: dict[str, Any] = {
    "name": "ü",
    "loss": 2.5,
    "step": 10,
    "scores": None,
    "sizes": {"10": 1, "9": [True, 0.1, 1e300]},
}


@pytest.fixture
def sealed(empty_store: Store) -> Store:
    write_sealed(empty_store, KEY, VALUES)
    return empty_store


def test_what_is_written_is_read_back_without_the_checksum(empty_store: Store) -> None:
    write_sealed(empty_store, NOTES, VALUES)
    assert read_sealed(empty_store, NOTES) == VALUES
    assert read_sealed(empty_store, "runs/two/notes.json") is None


def test_names_that_are_numbers_are_read_back_as_texts(empty_store: Store) -> None:
    write_sealed(empty_store, NOTES, {"sizes": {10: 1, 9: 2}})
    assert read_sealed(empty_store, NOTES) == {"sizes": {"10": 1, "9": 2}}


def test_any_flipped_bit_is_noticed_or_changes_nothing(sealed: Store) -> None:
    path = sealed.fetch(KEY)
    intact, refused = path.read_bytes(), 0
    for bit in range(8 * len(intact)):
        path.write_bytes(flipped(intact, bit))
        try:
            assert read_sealed(sealed, KEY) == VALUES
        except ArtifactError:
            refused += 1
    assert refused > 6 * len(intact)


def test_the_file_of_another_place_and_one_without_its_checksum_are_refused_with_the_remedy(sealed: Store) -> None:
    sealed.write_bytes("runs/two/plan.json", sealed.read_bytes(KEY))
    with pytest.raises(
        ArtifactError, match=r"runs/two/plan\.json is damaged: .* another path; start the run's command again"
    ):
        read_sealed(sealed, "runs/two/plan.json")
    sealed.write_json(KEY, VALUES)
    with pytest.raises(
        ArtifactError, match=r"runs/one/plan\.json is damaged: it has no checksum.*; start the run's command"
    ):
        read_sealed(sealed, KEY)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"7", b"[" * 100_000, b"9" * 5000, b'{"a":"\\ud800","checksum":1}']
)
def test_what_is_no_sealed_object_is_refused_by_its_path(sealed: Store, content: bytes) -> None:
    sealed.write_bytes(KEY, content)
    with pytest.raises(ArtifactError, match=r"runs/one/plan\.json is damaged"):
        read_sealed(sealed, KEY)


def test_a_listed_file_with_other_content_than_its_manifest_says_is_refused(empty_store: Store) -> None:
    key, content = "shards/code-1/sources.json", b'[{"bytes": 1}]'
    empty_store.write_bytes(key, content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert read_listed(empty_store, key, sha256) == [{"bytes": 1}]
    assert read_listed(empty_store, key, None) is None
    empty_store.write_bytes(key, content.replace(b"1", b"2"))
    with pytest.raises(
        ArtifactError, match=r"sources\.json is damaged: it does not match the checksum in its manifest"
    ):
        read_listed(empty_store, key, sha256)


def test_a_line_is_a_json_object_whose_checksum_is_of_its_bytes_its_number_and_its_place() -> None:
    line = seal_line("runs/one/metrics.jsonl", 12, VALUES).removesuffix(b"\n")
    assert {**VALUES, "record": 12, "checksum": json.loads(line)["checksum"]} == json.loads(line)
    assert sealed_number("runs/one/metrics.jsonl", line) == 12
    assert unseal_line(line) == VALUES
    assert sealed_number("runs/two/metrics.jsonl", line) is None
    for other in (b"2", b"13", b"112", b"012", b"0", b"-12", b"1" * 5000):
        assert sealed_number("runs/one/metrics.jsonl", line.replace(b'"record": 12', b'"record": ' + other)) is None
    for bit in range(8 * len(line)):
        assert sealed_number("runs/one/metrics.jsonl", flipped(line, bit)) is None
    for end in range(len(line)):
        assert sealed_number("runs/one/metrics.jsonl", line[:end]) is None
    assert sealed_number("runs/one/metrics.jsonl", json.dumps(VALUES).encode()) is None


def test_every_file_that_is_sealed_has_a_remedy_of_its_own() -> None:
    run = ["config.json", "plan.json", "eval.json", "environment.json", "lineage.json", "checkpoint-last",
    "checkpoint-best",
           "epochs/epoch-0001-step-00000002", "lease.json"]  # fmt: skip
    for key in [
        *(f"runs/one/{name}" for name in run),
        "evaluations/x.json",
        "models/m/champion",
        "cache/seen-code-1.json",
    ]:
        assert remedy_of(key) != remedy_of("else")

"""The files of finished runs as the stages write them, made up, and a look at the pages that are made of them."""

import json
from html.parser import HTMLParser
from typing import Any

from tests.support import sealed_lines
from trainer.records.sealed import write_sealed
from trainer.store.manifest import ArtifactRef, Input, digest_file, make_manifest, write_manifest
from trainer.store.storage import Store

HOSTILE = "<script>alert('x')</script> & \"quoted\"\n\tindented"
RUN = "runs/tiny"


DETAILS: dict[str, dict[str, Any]] = {
    "tokenizer": {"eos_token": "<|endoftext|>", "vocab_size": 300},
    "shards": {
        "corpus": "code", "dtype": "<u2", "block_bytes": 32768, "eos_id": 0, "vocab_size": 300,
        "tokenizer_sha256": "0" * 64, "num_shards": 1, "shard_tokens": [0],
        "totals": dict.fromkeys(
            (
                "raw_bytes", "documents", "tokens", "text_bytes", "validation_documents", "validation_tokens",
                "validation_bytes", "validation_token_bytes", "bad_records",
            ), 0,
        ),
        "keeps_text": True, "validation_digest": "0" * 32,
    },
    "encoded": {
        "task": "classification", "classes": ["no", "yes"], "text_columns": ["text"], "label_column": "label",
        "pad_id": 0,
        "vocab_size": 300, "tokenizer": "", "tokenizer_sha256": "0" * 64, "splits": {}, "source": {"identity": []},
    },
    "decisions": {
        "curation": {"near": None, "transform": None},
        "reasons": ["exact duplicate"], "corpora": [], "first_documents": {}, "documents": 0,
        "table": {}, "compared": None, "kept_out": None, "measures": [],
    },
    "checkpoint": {"step": 1, "scores": None, "run": "0" * 16},
    "model": {"run": "0" * 16},
}  # fmt: skip
"""The least that manifests of each kind say."""


def publish(
    store: Store, key: str, kind: str, files: dict[str, bytes], details: dict, inputs: dict[str, str] | None = None
) -> ArtifactRef:
    details = {**DETAILS.get(kind, {}), **details}
    for name, data in files.items():
        store.write_bytes(f"{key}/{name}", data)
    records = [digest_file(store.fetch(f"{key}/{name}"), name) for name in files]
    manifest = make_manifest(kind, key.rsplit("-", 1)[-1], records, details)
    made_from = {role: Input(key=each, content="") for role, each in (inputs or {}).items()}
    manifest = manifest.model_copy(update={"created": "2026-01-02T03:04:05+00:00", "inputs": made_from})
    write_manifest(store, key, manifest)
    return ArtifactRef(key=key, fingerprint=manifest.fingerprint, size=manifest.size())


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    )
    return len(header).to_bytes(8, "little") + header.encode()


def step_record(step: int) -> dict:
    speed = {"tokens_per_second": 1000.0 + step, "mfu": 0.25, "step_seconds": 0.5, "data_wait_seconds": 0.001}
    values = {"loss": 5 - step / 100, "learning_rate": 1e-3, "grad_norm": 1.5, "attempts": step}
    return {"kind": "train", "step": step, **values, **speed}


def write_records(store: Store, records: list[dict[str, Any]]) -> None:
    store.write_bytes(f"{RUN}/metrics.jsonl", sealed_lines(f"{RUN}/metrics.jsonl", records))


def publish_checkpoint(store: Store, step: int, scores: dict[str, float], pointers: tuple[str, ...]) -> None:
    checkpoint, name = {"step": step, "scores": scores}, f"checkpoints/step-{step:08d}"
    publish(store, f"{RUN}/{name}", "checkpoint", {"state.json": b"{}"}, checkpoint)
    for pointer in pointers:
        write_sealed(store, f"{RUN}/{pointer}", {"checkpoint": name, **checkpoint})


def page(store: Store) -> str:
    return store.read_bytes(f"{RUN}/report.html").decode()


class Page(HTMLParser):
    """What a page would fetch, its identifiers and its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.elements: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            if name.rsplit(":", 1)[-1] in {"src", "srcset", "href", "data", "action", "poster"}:
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

"""The effect of curation on a model: trained on text with 30 % planted copies and junk, and on the same text curated.

    python -m benchmarks.curated_training [STEPS]

Both models are evaluated on held-out documents of the text without planted ones; neither was trained on these. All
other settings are the quickstart's.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import run_timed, say, spread
from samples.corpora import all_docstrings, standard_modules
from samples.planted import FRENCH, GERMAN, as_lines
from trainer.common.progress import silent
from trainer.config.files import load_job, override
from trainer.config.jobs import PipelineJob
from trainer.data.shards import is_held_out
from trainer.kinds.pretraining.kind import prepare
from trainer.records.sealed import require_sealed
from trainer.records.steps import here
from trainer.store.storage import Store

SEEDS = (1, 2, 3)
JUNK_SHARE = 0.3
HELD_OUT = 0.05

CURATION: dict[str, Any] = {
    "exact": {}, "near": {},
    "filters": [{"kind": "gopher_repetition"}, {"kind": "language", "languages": ["en"]}],
}  # fmt: skip


def junk(texts: Sequence[str], draw: random.Random) -> Iterator[str]:
    """Copies of a few documents with other white space or some words replaced, repeated lines, and random words."""
    few = draw.sample([text for text in texts if len(text) > 200], 40)
    while True:
        words = draw.choice(few).split()
        yield "  ".join(words)
        yield " ".join(word if draw.random() > 0.01 else "thing" for word in words)
        yield f"{' '.join(words[:6])}\n" * 30
        foreign = draw.choice([GERMAN, FRENCH]).split()
        yield ". ".join(" ".join(draw.sample(foreign, 12)) for _ in range(10))


def write_texts(folder: Path) -> None:
    """Write clean.jsonl and dirty.jsonl."""
    draw = random.Random(0)
    texts = [text for text in all_docstrings(dict(standard_modules())) if len(text) > 40]
    planted, size = [], 0
    wanted = sum(map(len, texts)) * JUNK_SHARE / (1 - JUNK_SHARE)
    trained_on = [text for text in texts if not is_held_out(text.encode(), HELD_OUT)]
    for text in junk(trained_on, draw):
        if size >= wanted:
            break
        planted.append(text)
        size += len(text)
    mixed = draw.sample([*texts, *planted], len(texts) + len(planted))
    for name, found in (("clean", texts), ("dirty", mixed)):
        (folder / f"{name}.jsonl").write_text(as_lines([{"text": text} for text in found]), encoding="utf-8")


def job_of(folder: Path, name: str, text: str, seed: int, steps: int, curation: dict[str, Any] | None) -> PipelineJob:
    """The quickstart on other text, with the clean text's tokenizer, which is found by its name."""
    corpora = [{"name": "text", "paths": [str(folder / f"{text}.jsonl")], "format": "jsonl"}]
    words = {
        "store": str(folder / "store"), "run": name, "data.corpora": corpora, "data.curation": curation,
        "data.validation_fraction": HELD_OUT, "training.seed": seed, "training.max_steps": steps,
        "training.evaluate_every": None, "training.save_every": steps, "data.shards": {"num_shards": 1},
    }  # fmt: skip
    return override(
        load_job(PipelineJob, "configs/quickstart.yaml"), [f"{key}={json.dumps(each)}" for key, each in words.items()]
    )


def loss_of(folder: Path, job: PipelineJob, shards: str) -> float:
    """Train, and evaluate the final model on a shard set's held-out documents; nats per token."""
    path = folder / f"{job.run}.json"
    path.write_text(job.model_dump_json(exclude_unset=True))
    run_timed(["-m", "trainer", str(path)])
    values = {"store": job.store, "checkpoint": f"runs/{job.run}/final", "shards": [shards]}
    (folder / "evaluate.json").write_text(json.dumps(values))
    run_timed(["-m", "flows.command", "evaluate", str(folder / "evaluate.json")])
    store = Store(job.store)
    found = [require_sealed(store, f"evaluations/{name}") for name in store.names("evaluations")]
    (own,) = [each for each in found if each["checkpoint"] == f"runs/{job.run}/final"]
    loss: float = own["total"]["figures"]["loss"]
    return loss


def main(steps: int) -> None:
    print(
        f"training on text with {JUNK_SHARE:.0%} planted copies and junk, and on the same text curated: {steps} steps"
    )
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        write_texts(folder)
        clean = prepare(job_of(folder, "clean", "clean", 1, steps, None).preparation(), here(silent())).shards[0].key
        pairs = []
        for seed in SEEDS:
            dirty = loss_of(folder, job_of(folder, f"dirty-{seed}", "dirty", seed, steps, None), clean)
            curated = loss_of(folder, job_of(folder, f"curated-{seed}", "dirty", seed, steps, CURATION), clean)
            pairs.append((dirty, curated))
            say(f"seed {seed}: loss on clean text, uncurated, curated", f"{dirty:.4f}, {curated:.4f}")
    say("nats per token saved by curation", spread([dirty - curated for dirty, curated in pairs]), "more than 0")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)

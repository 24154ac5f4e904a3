"""Predicting new texts with a classifier, against `transformers.pipeline` in batches.

    python -m benchmarks.predicting MODEL [TEXTS] [PAIRS]

MODEL is the folder of a sequence-classification model with its tokenizer, or of any encoder, which then gets an
untrained head. The texts are sentences and paragraphs of the standard library's documentation, of all lengths. Both
sides run alternately as whole processes, from a JSON Lines file to a file of predictions. The pipeline uses the best
batch size of BATCHES, which is found first. Processor time is also printed, because other work affects it less.
"""

import hashlib
import json
import pydoc
import re
import statistics
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, NamedTuple

from benchmarks.measure import run_timed, say, spread

BATCHES = (8, 32, 64)
LENGTH = 256
TRIAL = 1000
"""Number of texts for choosing the pipeline's batch size."""


def texts(count: int) -> list[str]:
    """Distinct sentences and paragraphs of real documentation, short and long ones mixed."""
    found: dict[str, None] = {}
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in ("antigravity", "this", "idlelib"):
            continue
        try:
            page = pydoc.plain(pydoc.render_doc(name))
        except Exception:  # modules for other systems
            continue
        paragraphs = [" ".join(each.replace("|", " ").split()) for each in re.split(r"\n[ |]*\n", page)]
        sentences = [each for paragraph in paragraphs for each in re.split(r"(?<=[.!?]) ", paragraph)]
        found.update(dict.fromkeys(each for each in (*paragraphs, *sentences) if 10 <= len(each) <= 2000))
    return list(islice(cycle(sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())), count))


def make_classifier(model: str, folder: Path) -> Path:
    """Save the model as a classifier with its tokenizer; a missing head is added untrained, at the same speed."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    AutoModelForSequenceClassification.from_pretrained(model, num_labels=2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def with_headrace(config: str) -> None:
    """Do the work of `python -m trainer.predict CONFIG`; record the seconds after the imports."""
    from trainer.predict import main

    started = time.perf_counter()
    if main([config]):
        raise SystemExit(1)
    Path(f"{config}.seconds").write_text(str(time.perf_counter() - started))


def with_pipeline(model: str, path: str, out: str, batch: int) -> None:
    """Use `pipeline` as documented for many texts; record the seconds from the same point."""
    from transformers import pipeline

    started = time.perf_counter()
    rows = [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").splitlines()]
    classify = pipeline("text-classification", model=model, device="cpu", top_k=None)
    answers: Any = classify(rows, batch_size=batch, truncation=True, max_length=LENGTH)  # lists, for all labels
    with open(out, "w", encoding="utf-8") as file:
        for number, answer in enumerate(answers):
            line = {"id": str(number), "probabilities": {each["label"]: each["score"] for each in answer}}
            file.write(json.dumps(line) + "\n")
    Path(f"{out}.seconds").write_text(str(time.perf_counter() - started))


class Side(NamedTuple):
    """One side's seconds: the whole process, without start and imports, processor time; and its answers."""

    whole: float
    net: float
    processor: float
    answers: list[dict[str, float]]


class Sides:
    """Both sides on the same file."""

    def __init__(self, folder: Path, model: Path, count: int) -> None:
        self.folder, self.model, self.count = folder, model, count
        self.path = folder / f"{count}.jsonl"
        self.path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count)), encoding="utf-8")

    def ours(self, turn: int) -> Side:
        store, config = self.folder / f"store-{self.count}-{turn}", self.folder / "job.json"
        job = {
            "store": str(store), "model": str(self.model), "device": "cpu",
            "data": {"source": "jsonl", "paths": [str(self.path)], "text_columns": ["text"], "max_length": LENGTH},
        }  # fmt: skip
        config.write_text(json.dumps(job))
        whole, processor = _run(f"with_headrace({str(config)!r})")
        (made,) = store.glob("predictions/*/predictions.jsonl")
        return Side(whole, float(Path(f"{config}.seconds").read_text()), processor, _probabilities(made))

    def theirs(self, batch: int) -> Side:
        out = self.folder / "theirs.jsonl"
        whole, processor = _run(f"with_pipeline({str(self.model)!r}, {str(self.path)!r}, {str(out)!r}, {batch})")
        return Side(whole, float(Path(f"{out}.seconds").read_text()), processor, _probabilities(out))


def _run(call: str) -> tuple[float, float]:
    """Seconds and processor seconds of a process."""
    before = getrusage(RUSAGE_CHILDREN)
    whole = run_timed(["-c", f"from benchmarks.predicting import *; {call}"])
    after = getrusage(RUSAGE_CHILDREN)
    return whole, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _probabilities(path: Path) -> list[dict[str, float]]:
    return [json.loads(line)["probabilities"] for line in path.read_text(encoding="utf-8").splitlines()]


def _difference(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> float:
    """The largest difference of a probability."""
    pairs = zip(ours, theirs, strict=True)
    return max(abs(one[name] - other[name]) for one, other in pairs for name in other)


def main(model: str, count: int = 10_000, pairs: int = 3) -> None:
    """Run both sides alternately and print the figures."""
    print(
        f"predicting: {count:,} new texts, fp32 on the CPU, against transformers.pipeline (whole processes)", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        classifier = make_classifier(model, folder / "model")
        trial = Sides(folder, classifier, min(TRIAL, count))
        took = {batch: trial.theirs(batch).processor for batch in BATCHES}
        best = min(took, key=lambda batch: took[batch])
        said = ", ".join(f"{batch}: {seconds:.1f} s" for batch, seconds in took.items())
        say(f"pipeline, processor time of {trial.count:,} texts by batch size", said)
        sides = Sides(folder, classifier, count)
        ours, theirs = [], []
        for turn in range(pairs):
            ours.append(sides.ours(turn))
            theirs.append(sides.theirs(best))
            say(f"pair {turn}: headrace, pipeline", f"{ours[-1].whole:.0f} s, {theirs[-1].whole:.0f} s")
        for who, each in (("headrace", ours), (f"transformers.pipeline, batch size {best}", theirs)):
            say(
                f"{who}: texts per second, without start and imports",
                f"{count / statistics.median(side.net for side in each):,.0f}",
            )
        for figure, what in (
            ("whole", "whole processes"),
            ("net", "without start and imports"),
            ("processor", "processor time"),
        ):
            ratios = [getattr(mine, figure) / getattr(other, figure) for mine, other in zip(ours, theirs, strict=True)]
            say(f"time, headrace / pipeline: {what}", spread(ratios), "at most 1.0")
        say(
            "largest difference of a probability",
            f"{_difference(ours[0].answers, theirs[0].answers):.1e}",
            "at most 1e-4",
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

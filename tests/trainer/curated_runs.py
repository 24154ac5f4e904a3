"""Short runs on two small corpora of which some documents are decided against, from raw files to the report."""

import json
from pathlib import Path
from typing import Any

from tests.processes import cores
from tests.support import cpu_runtime, small_job
from tests.trainer.made import prepare
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, train
from trainer.registry.report import make_report
from trainer.store.storage import Store

KEPT_OUT = "kept-out.txt"


def write_kept_out(raw: Path, folder: Path) -> Path:
    """An evaluation set, of the first document of `docs` on one line."""
    document = json.loads((raw / "docs.jsonl").read_text(encoding="utf-8").splitlines()[0])["text"]
    path = folder / KEPT_OUT
    path.write_text(" ".join(document.split()) + "\n", encoding="utf-8")
    return path


def curated_run(raw: Path, store: Path, curation: dict[str, Any] | None = None, **changes: Any) -> PipelineJob:
    """A job that drops short documents and those that share text with the evaluation set beside the store, or as is
    said.
    """
    options = {
        "filters": [{"kind": "length", "least_bytes": 700}],
        "decontaminate": {"files": [{"paths": [str(store.parent / KEPT_OUT)]}]},
    }  # fmt: skip
    return small_job(raw, store, data__curation=options if curation is None else curation, **changes)


def run_through(job: PipelineJob) -> str:
    """Make all of it, in this process; returns the key of the run."""
    cpu_runtime()
    with cores(1):
        run = train(job, silent(), prepare(job.preparation(), silent())).key
        evaluate_checkpoint(evaluation_of(job, run), silent())
    make_report(Store(job.store), run)
    return run

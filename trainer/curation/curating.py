"""The step that decides: measures what has not been measured, applies rules, finds duplicates, and publishes."""

import logging

from trainer.common.formats import size
from trainer.common.process import usable_cores
from trainer.common.progress import Progress
from trainer.config.jobs import PrepareJob
from trainer.curation.contamination import describe
from trainer.curation.deciding import Deciding
from trainer.curation.plan import Plan, make_plan
from trainer.curation.publishing import publish_decided
from trainer.curation.showing import Decided
from trainer.data.decisions import KIND, read_pieces
from trainer.data.shard_building import Workers
from trainer.data.sources import PIECE_BYTES, forgetting_changed
from trainer.data.tokenization import carrier_of
from trainer.records.basis import by_file
from trainer.records.steps import CONTENTS, Explains, Parts, Sources, Step
from trainer.store.manifest import Manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def curate(store: Store, job: PrepareJob, progress: Progress) -> Step:
    """The step that decides of each document whether it stays.

    It raises `CorpusError` for raw text, evaluation sets or functions that cannot be used, and if no document stays.
    """
    with progress.bar("look at raw files", None, "B") as bar:
        plan = make_plan(store, job.data, bar.advance)

    def build(step: Step) -> Manifest:
        workers = Workers(job.data.workers or usable_cores())
        with forgetting_changed(store), workers, carrier_of(job, workers) as carrier:
            decided = Deciding(store, job, plan, carrier, progress)
            decided.measure()
            decided.filter()
            decided.drop_duplicates()
            manifest = publish_decided(step, decided)
            for told in Decided(store, step.key).warnings():
                log.warning("%s", told)
            return manifest

    def recall_sources(key: str, manifest: Manifest) -> Sources:
        listed = read_pieces(store, key, manifest)
        kept_out = manifest.details["kept_out"]
        pieces = by_file(vars(piece) for pieces in listed.values() for piece in pieces)
        functions = manifest.recipe[CONTENTS]["functions"]
        return {**pieces, **_kept_out(kept_out["files"] if kept_out else []), **_functions(functions)}

    return Step(
        store, KIND, KIND, "text", plan.recipe, build, told=frozenset({PIECE_BYTES}),
        otherwise="delete the folder to have it decided anew",
        explains=Explains(
            sources=lambda: _sources(plan), recall_sources=recall_sources,
            parts=lambda: Parts(work=f"about {size(plan.raw_bytes)} of raw text"),
        ),
    )  # fmt: skip


def _sources(plan: Plan) -> Sources:
    """The pieces of raw files, the evaluation sets that are kept out, and the files that functions come from."""
    pieces = by_file(vars(piece) for _, pieces in plan.corpora for piece in pieces)
    return {**pieces, **_kept_out(describe(plan.evaluation)), **_functions(plan.recipe[CONTENTS]["functions"])}


def _kept_out(files: list[dict[str, str]]) -> dict[str, str]:
    return {f"{file['path']}, kept out": file["sha256"] for file in files}


def _functions(digests: dict[str, str]) -> dict[str, str]:
    return {f"that of {name}, or one that it imports": digest for name, digest in digests.items()}

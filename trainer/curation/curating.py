"""The stage that decides: measures what has not been measured, applies rules, finds duplicates, and publishes."""

import logging

from trainer.common.process import usable_cores
from trainer.common.progress import Progress
from trainer.config.jobs import PrepareJob
from trainer.corpus.carrying import carrier_of
from trainer.corpus.decisions import KIND
from trainer.corpus.shard_workers import Workers
from trainer.corpus.sources import forgetting_changed
from trainer.curation.deciding import Deciding
from trainer.curation.plan import make_plan
from trainer.curation.publishing import publish
from trainer.curation.showing import Decided
from trainer.records.holds import hold_reused
from trainer.store.manifest import ArtifactRef, Manifest, find_damage, recall_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def curate(job: PrepareJob, progress: Progress) -> ArtifactRef:
    """Publish what is decided of each document, or find it published.

    Raises `CorpusError` for raw text, evaluation sets or functions that cannot be used, and if no document stays.
    """
    store, data = Store(job.store), job.data
    with progress.bar("look at raw files", None, "B") as bar:
        plan = make_plan(store, data, bar.advance)
    if (manifest := find_decisions(store, plan.key)) is not None:
        return ArtifactRef(key=plan.key, fingerprint=plan.name, size=manifest.size(), reused=True)
    store.sweep()
    with forgetting_changed(store), Workers(data.workers or usable_cores()) as workers, carrier_of(job, workers) as carrier:
        decided = Deciding(store, job, plan, carrier, progress)
        decided.measure()
        decided.filter()
        decided.drop_duplicates()
        if (manifest := find_decisions(store, plan.key)) is None:  # else another process, which may be reading them already
            manifest = publish(decided)
            for told in Decided(store, plan.key).warnings():
                log.warning("%s", told)
    return ArtifactRef(key=plan.key, fingerprint=plan.name, size=manifest.size())


def find_decisions(store: Store, key: str) -> Manifest | None:
    """The manifest of decisions that are published and intact; a damaged one counts as none."""
    manifest = recall_manifest(store, key, KIND)
    if manifest is None:
        return None
    for file, problem in (damage := find_damage(store, key, manifest)).items():
        log.warning("%s/%s %s: deciding anew", store.path(key), file, problem)
    return None if damage or not hold_reused(store, key) else manifest

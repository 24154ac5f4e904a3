"""What would become of each stage of a job if it were started now, and why. Nothing is made, and the store is only read.

Every fingerprint comes from the function that the stage itself takes it from. Raw files that changed since they were last
digested are read.
"""

from trainer.config.finetuning import FinetuneJob
from trainer.config.jobs import PipelineJob
from trainer.corpus.preparation import PreparedData
from trainer.foresight.foreseen import Foreseen
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


class LookedAt(Store):
    """A store that is only looked at: what would be remembered in it is dropped."""

    def write_bytes(self, key: str, data: bytes) -> None:
        """Nothing is written."""


def foresee(job: PipelineJob | FinetuneJob) -> list[Foreseen]:
    """Every stage of a job, in order. Raises the `PipelineError` of input that is missing or bad."""
    from trainer.foresight.run import foresee_evaluation, foresee_report, foresee_run

    store = LookedAt(job.store)
    stages, data = _foresee_data(store, job)
    run = foresee_run(store, job, data, stages)
    evaluation = foresee_evaluation(store, job, data, run)
    return [*stages, run, evaluation, foresee_report(store, stages, run, evaluation)]


def _foresee_data(store: Store, job: PipelineJob | FinetuneJob) -> tuple[list[Foreseen], PreparedData | ArtifactRef | None]:
    """The stages before training, and references to what they give, as far as its names are known."""
    if isinstance(job, FinetuneJob):
        from trainer.foresight.encoded import foresee_encoded

        encoded, ref = foresee_encoded(store, job)
        return [encoded], ref
    from trainer.foresight.data import foresee_corpus, foresee_tokenizer

    tokenizer = foresee_tokenizer(store, job.data)
    corpora = [foresee_corpus(store, job.data, corpus, tokenizer, job.verify) for corpus in job.data.corpora]
    known = tokenizer.verdict == "reused"
    data = PreparedData(tokenizer=_refer(tokenizer), shards=[_refer(each) for each in corpora]) if known else None
    return [tokenizer, *corpora], data


def _refer(stage: Foreseen) -> ArtifactRef:
    assert stage.key is not None
    return ArtifactRef(key=stage.key, fingerprint=stage.key[-16:], size=0, reused=stage.verdict == "reused")

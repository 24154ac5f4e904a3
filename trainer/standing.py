"""How far a job has come, as its store shows it: what a run that died is measured by before it is started again."""

from typing import Any, NamedTuple

from trainer.config import PipelineJob, PrepareJob
from trainer.finetune_config import FinetuneJob
from trainer.lease import is_held
from trainer.places import CONFIG, LAST
from trainer.storage import Store

SHARDS = "shards"


class Standing(NamedTuple):
    """Files of the job's shard sets, and the step of its run's last checkpoint; both only grow while it gets on."""

    shard_files: int
    step: int

    def is_beyond(self, other: "Standing") -> bool:
        """Whether the job got further than that."""
        return self.step > other.step or self.shard_files > other.shard_files


def find_standing(job: PipelineJob | PrepareJob | FinetuneJob) -> Standing:
    """Where the job stands. Raises `StorageError` if the store cannot be read."""
    store = Store(job.store)
    corpora = [] if isinstance(job, FinetuneJob) else [corpus.name for corpus in job.data.corpora]
    sets = [name for name in store.names(SHARDS) if name.rpartition("-")[0] in corpora]
    files = sum(len(store.names(f"{SHARDS}/{name}")) for name in sets)
    steps = [pointer["step"] for run in _runs_of(store, job) if (pointer := store.read_json(f"{run}/{LAST}"))]
    return Standing(files, max(steps, default=0))


def is_alive(job: PipelineJob | PrepareJob | FinetuneJob) -> bool:
    """Whether some process still trains the job, whatever an orchestrator believes."""
    store = Store(job.store)
    return any(is_held(store, run) for run in _runs_of(store, job))


def _runs_of(store: Store, job: PipelineJob | PrepareJob | FinetuneJob) -> list[str]:
    """The runs that exactly this job has made."""
    wanted: Any = job.model_dump(mode="json")
    runs = [f"runs/{name}" for name in store.names("runs")]
    return [run for run in runs if (config := store.read_json(f"{run}/{CONFIG}")) and config["job"] == wanted]

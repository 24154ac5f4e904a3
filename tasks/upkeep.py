"""The task that collects garbage in a store and shows a table of it."""

from prefect.artifacts import create_table_artifact

from tasks.patience import patient_task
from tasks.showing import TaskLogger
from trainer.common.display import size
from trainer.config.jobs import GarbageJob
from trainer.registry.garbage import collect
from trainer.registry.leftovers import GARBAGE, Garbage, describe, sum_up

REMOVE = "remove=true"


@patient_task("collect-garbage", retries=0)
def collect_unreached(job: GarbageJob) -> list[Garbage]:
    """List unused artifacts, and delete them if the job's `remove` is set; also shows those deleted before an error."""
    found: list[Garbage] = []
    try:
        for each in collect(job):
            found.append(each)
            TaskLogger().info(describe(each))
    finally:
        total = sum_up(found, job.remove, GARBAGE, REMOVE)
        create_table_artifact(garbage_table(found, job.remove), key="garbage", description=f"{job.store}: {total}")
    return found


def garbage_table(found: list[Garbage], removed: bool) -> list[dict[str, object]]:
    """One row per artifact."""
    return [
        {
            "what": each.what,
            "key": each.key,
            "size": size(each.size),
            "last written": f"{each.modified:%Y-%m-%d %H:%M} UTC",
            "removed": "yes" if removed else "no",
        }
        for each in found
    ]

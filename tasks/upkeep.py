"""Upkeep of a store, with what it found as a table."""

from prefect.artifacts import create_table_artifact

from tasks.patience import patient_task
from tasks.showing import TaskLogger
from trainer.common.formats import size
from trainer.config.jobs import GarbageJob
from trainer.registry.garbage import collect
from trainer.registry.leftovers import GARBAGE, Garbage, describe, sum_up

REMOVE = "remove=true"


@patient_task("collect-garbage", retries=0)
def collect_unreached(job: GarbageJob) -> list[Garbage]:
    """Find what nothing reaches, and remove it if the job says so; what was removed before an error is shown too."""
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
    """A row for each thing."""
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

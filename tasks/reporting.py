"""The task that writes the report and the model card."""

from prefect.artifacts import create_markdown_artifact

from tasks.patience import patient_task
from tasks.showing import TaskLogger, reused
from trainer.common.stopping import check_stop, stoppable
from trainer.registry.report import Report, make_report
from trainer.store.storage import Store


@patient_task("report")
def report(store: str, run_key: str) -> Report:
    """Write report.html, lineage.json and the model card of a finished run."""
    with stoppable():
        check_stop()
        made = make_report(Store(store), run_key)
    create_markdown_artifact(made.markdown, key="report", description=run_key)
    if made.reused:
        TaskLogger().info("reused %s: its contents have not changed", made.key)
        return reused(made, f"{made.key} is up to date")
    return made

"""The report of a run of any kind."""

from trainer.config.kinds import kind_of_run
from trainer.registry import report
from trainer.registry.content import ReportContent
from trainer.registry.facts import RunFacts
from trainer.registry.report import Report
from trainer.store.storage import Store


def make_report(store: Store, run_key: str) -> Report:
    """Write a finished run's report, or find it: `trainer.registry.report.make_report` for a run of any kind."""
    return report.make_report(store, run_key, report_content)


def report_content(facts: RunFacts) -> ReportContent:
    """What is to be told of a run."""
    content: ReportContent = kind_of_run(facts.config).kind.report_content(facts, facts.plan)
    return content

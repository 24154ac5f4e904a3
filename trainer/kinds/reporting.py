"""The report of a run of any kind."""

from trainer.kinds.table import kind_of_run
from trainer.report import making
from trainer.report.account import Account
from trainer.report.making import Report
from trainer.runs.facts import RunFacts
from trainer.store.storage import Store


def make_report(store: Store, run_key: str) -> Report:
    """Write a finished run's report, or find it: `trainer.report.making.make_report` for a run of any kind."""
    return making.make_report(store, run_key, make_account)


def make_account(facts: RunFacts) -> Account:
    """What is to be told of a run."""
    return kind_of_run(facts.config).make_account(facts, facts.plan)

"""The flow that lists and deletes unused artifacts."""

import re

from prefect import State

from flows.collect_garbage import collect_garbage
from tests.flows.conftest import flow_run_of
from tests.flows.looking import artifacts
from tests.trainer.stocked_store import add_encoded, job
from trainer.registry.leftovers import Garbage
from trainer.store.storage import Store


def shown(state: State[list[Garbage]]) -> tuple[str, str]:
    """A flow run's table and its description."""
    (table,) = [artifact for artifact in artifacts(flow_run_of(state)) if artifact.key == "garbage"]
    return str(table.data), str(table.description)


def test_a_dry_run_shows_what_is_removed_when_the_job_says_so(empty_store: Store) -> None:
    key = add_encoded(empty_store, "lost")
    table, said = shown(collect_garbage(job(empty_store), return_state=True))
    assert key in table and '"removed": "no"' in table
    assert re.search(r": 1 unreferenced folder, \d+ bytes; remove=true removes them$", said)
    assert empty_store.exists(f"{key}/manifest.json")
    table, said = shown(collect_garbage(job(empty_store, remove=True), return_state=True))
    assert key in table and '"removed": "yes"' in table and said.endswith(" bytes: removed")
    assert not empty_store.exists(f"{key}/manifest.json")

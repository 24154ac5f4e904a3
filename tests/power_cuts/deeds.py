"""Work on a store without training, which can be repeated: `python -m tests.power_cuts.deeds DEED STORE`."""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta

from tests.trainer.stocked_store import add_encoded, add_run, add_superseded, add_tokenizer, found
from trainer.common.errors import PipelineError
from trainer.registry.leftovers import find_leftovers, remove_leftover
from trainer.registry.promotion import promote, roll_back
from trainer.registry.references import pin
from trainer.store.manifest import publish_folder
from trainer.store.names import FINAL_KIND
from trainer.store.storage import Store


def stock(store: Store) -> None:
    """Artifacts used by runs and a pin, and unused ones; one run replaced another one as the champion."""
    for name in ("first", "second", "third"):
        add_run(store, name, add_superseded(store, name))
        store.write_bytes(f"runs/{name}/metrics.jsonl", b'{"kind": "save", "step": 1}\n')
    pin(store, add_superseded(store, "pinned"))
    add_superseded(store, "lost")
    add_encoded(store, "lost")
    add_tokenizer(store, "alone")
    for run in ("runs/first", "runs/second"):
        promote(store, "model", run, {"loss": 1.0}, "for a trial")


def publish(store: Store) -> None:
    """Publish an artifact and replace it; put, create, swap, copy and rename files."""
    for content in (b"old", b"new"):
        with store.staging(key="runs/one/final") as folder:
            (folder / "model.safetensors").write_bytes(content * 1000)
            publish_folder(store, folder, "runs/one/final", FINAL_KIND, content.hex(), {"run": content.hex()})
    store.write_bytes("runs/one/deep/er/note", b"a note" * 100)
    store.create("runs/two/lease", b"held")
    store.swap("runs/two/lease", b"held", b"held by another")
    if not store.exists("runs/three/second"):
        store.write_bytes("runs/three/first", b"to be renamed")
    store.rename("runs/three/first", "runs/three/second")
    store.copy("runs/one/deep/er/note", "runs/four/copy")


def promote_third(store: Store) -> None:
    promote(store, "model", "runs/third", {"loss": 0.5}, "for a trial")


def roll_back_second(store: Store) -> None:
    roll_back(store, "model", "for a trial", "runs/second")


def collect(store: Store) -> None:
    """Delete leftovers of other processes, and unused artifacts."""
    _remove_leftovers(store)
    found(store, remove=True)


def collect_runs(store: Store) -> None:
    """Also delete old runs, except the champion and the run that it replaced."""
    _remove_leftovers(store)
    found(store, remove=True, runs_older_than_days=0)


def _remove_leftovers(store: Store) -> None:
    for left in find_leftovers(store, timedelta(0)):
        remove_leftover(store, left)


DEEDS: Mapping[str, Callable[[Store], None]] = {
    each.__name__: each for each in (stock, publish, promote_third, roll_back_second, collect, collect_runs)
}


def main(arguments: list[str]) -> int:
    deed, store = arguments
    try:
        DEEDS[deed](Store(store))
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

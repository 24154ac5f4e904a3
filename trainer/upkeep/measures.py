"""What curation measured and no decisions need any more. All of it can be found out again, which only takes time.

    measures/CORPUS-READING/MEASURE-OPTIONS/NUMBER-COUNT-PIECES.npz    the newest file of each unit stays as long as decisions
                                                                       that were made from such measures do (measuring.py)
    measures/overlaps/EVALUATION.npz                                   stays with decisions that keep these sets out
    measures/pairs/PASS/…                                              is for going on with a curation that was broken off

Whatever is young stays: a curation may be at work on it. One that finds gone what it was about to take over says so, and makes
it when it is started again.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime

from trainer.data.decisions import KIND as DECISIONS
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store
from trainer.store.stored import Stored
from trainer.upkeep.roots import MEASURES, Folder


def find_unneeded(store: Store, folders: Iterable[Folder], gone: set[str], before: datetime) -> Iterator[Folder]:
    """The folders of measures with those of their files that were not written to since then and no decisions need.

    Decisions that are `gone`, or would be, need none. Raises `ArtifactError` if it cannot be told what the others need.
    """
    decisions = {f"{DECISIONS}/{name}" for name in store.names(DECISIONS)} - gone
    needed = {key for each in decisions for key in _made_from(store, each)}
    for folder in sorted(folders, key=lambda folder: folder.key):
        if folder.key.startswith(MEASURES):
            kept = _newest_of_units(folder.files) if folder.key in needed else set[str]()
            if old := [file for file in folder.files if file.modified < before and file.key not in kept]:
                yield Folder(folder.key, old)


def remove_measures(store: Store, unneeded: Folder) -> bool:
    """Remove these files, and no others: a curation may have begun to write beside them. Returns that they are gone."""
    for file in unneeded.files:
        store.delete(file.key)
    if store.local is not None:
        place = store.local / unneeded.key
        for folder in [*{(store.local / file.key).parent for file in unneeded.files} - {place}, place, place.parent]:
            with suppress(OSError):  # it was a file, or is not empty
                folder.rmdir()
    return True


def _made_from(store: Store, decisions: str) -> list[str]:
    """The folders of measures, and what is looked for of evaluation sets, that decisions were made from."""
    manifest = read_manifest(store, decisions, DECISIONS)
    if manifest is None:
        return []
    kept_out = manifest.details["kept_out"]
    looked_for = [kept_out["key"], kept_out.get("examples")] if kept_out else []
    return [*manifest.details["measures"], *filter(None, looked_for)]


def _newest_of_units(files: Iterable[Stored]) -> set[str]:
    """Of each unit the file that was written last; a file is named by its unit, and then by the pieces that were in it."""
    newest = {file.key.rpartition("-")[0]: file.key for file in sorted(files, key=lambda file: (file.modified, file.key))}
    return set(newest.values())

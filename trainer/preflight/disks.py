"""Whether disks have room for what a job will write: those of a local store, or this machine's for a remote one."""

from collections.abc import Callable, Mapping

from trainer.common.errors import StorageError
from trainer.common.formats import size
from trainer.store.checked_files import FOLDER, machine_cache
from trainer.store.storage import Store


def require_room(store: Store, needs: Mapping[str, int], present: Callable[[str], int], parameters: int) -> None:
    """Raise `StorageError` if a disk lacks the bytes that a job needs in folders of the store, which may be links to others.

    `present` says how many of a folder's bytes are there already, from an earlier start of the same job.
    """
    disks: dict[int, list[str]] = {}
    for folder in needs:
        if (disk := store.disk_of(folder)) is not None:
            disks.setdefault(disk, []).append(folder)
    for folders in disks.values():
        free, needed = store.free_bytes(folders[0]) or 0, sum(needs[folder] for folder in folders)
        if needed <= free:
            continue
        left = sum(max(0, needs[folder] - present(folder)) for folder in folders)
        if left > free:
            place = " and ".join(store.path(folder) for folder in folders) if len(folders) < len(needs) else store.path("")
            raise StorageError(
                f"the job needs about {size(left)} on {place}, which has {size(free)} free, for the checkpoints of "
                f"{parameters:,} parameters that are trained; take a smaller model, free some there, or keep fewer checkpoints "
                "(training.keep_last, training.keep_epochs)"
            )


def require_checkpoint_room(store: Store, needed: int) -> None:
    """Raise `StorageError` if this machine's disk lacks the bytes of a checkpoint of a remote store.

    It is written there before it is sent, and fetched to there, whatever the cache's limit, when training continues.
    """
    room = store.fetched_room()
    if room is not None and needed > room:
        raise StorageError(
            f"a checkpoint of this model takes about {size(needed)} on this machine, where it is written before it is sent to "
            f"{store.url} and fetched when training continues; the disk of {machine_cache()} has {size(room)} for it. Free "
            f"some there, or set {FOLDER} to a folder on a larger disk"
        )

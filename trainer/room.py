"""Whether a local store's disks have room for what a job will write."""

from collections.abc import Callable, Mapping

from trainer.errors import StorageError
from trainer.formats import size
from trainer.storage import Store


def require_room(store: Store, needs: Mapping[str, int], present: Callable[[str], int]) -> None:
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
                f"the job needs about {size(left)} on {place}, which has {size(free)} free; free some there, or keep fewer "
                "checkpoints (training.keep_last, training.keep_epochs)"
            )

"""A pipeline that is only looked at: which of its steps are there, and why the others are not."""

from typing import Any

from trainer.common.progress import silent
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.status import status
from trainer.records.named_steps import STEPS, open_step, title_of
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

UNKNOWN = "unknown"


class Looking:
    """A `Do` that makes nothing, and notes in `stages` what would become of each step.

    It refers to what is not there as if it were, so that what follows can be named as far as names are known.
    """

    def __init__(self, store: Store) -> None:
        self.stages: list[Foreseen] = []
        self._store = store
        self._missing: dict[str, Foreseen] = {}

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef:
        title = title_of(name, job, **made)
        for each in (made[needed] for needed in STEPS[name].needs):
            if each is not None and (missing := self._missing.get(each.key)):
                self.stages.append(Foreseen(title, "depends", reasons=(missing.later,)))
                ref = ArtifactRef(key=f"{UNKNOWN}/{len(self.stages)}", fingerprint="", size=0)
                self._missing[ref.key] = missing
                return ref
        step = open_step(name, self._store, silent(), job=job, **made)
        try:
            found, manifest = status(step, title)
            self.stages.append(found)
            ref = step.refer(manifest, reused=manifest is not None)
        finally:
            step.release()
        if found.verdict != "reused":
            self._missing[ref.key] = found
        return ref

    @property
    def is_known(self) -> bool:
        """Whether what every step makes has a name already."""
        return all(stage.key is not None for stage in self.stages)

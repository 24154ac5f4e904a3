"""What would become of lm-eval's figures of a finished run, and why."""

from trainer.config.jobs import EvaluateJob
from trainer.evaluation.harness_cache import find_harness, identify_harness, name_of
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.other_runs import intact
from trainer.foresight.status import NONE_YET, UNRECORDED
from trainer.records.basis import HarnessResult
from trainer.records.sealed import read_sealed
from trainer.store.storage import Store


def foresee_harness(store: Store, measuring: EvaluateJob) -> Foreseen:
    """Whether lm-eval measured a run's final model on the same tasks."""
    wanted = identify_harness(store, measuring, own=True)
    if find_harness(store, wanted) is not None:
        return Foreseen("harness", "reused", wanted.keys[0])
    values = intact(read_sealed, store, wanted.keys[0])
    if values is None:
        return Foreseen("harness", "made", wanted.keys[0], (NONE_YET,))
    before = HarnessResult(**values).identities()
    changed = [f"{name}: not measured yet" for name in wanted.tasks if name not in before]
    changed += [
        f"{name}: its files or data, limit, few_shot, chat_template or lm-eval's version are others"
        for name, identity in wanted.tasks.items()
        if before.get(name, name_of(identity)) != name_of(identity)
    ]
    return Foreseen("harness", "made", wanted.keys[0], tuple(changed or [f"{wanted.keys[0]} was {UNRECORDED}"]))

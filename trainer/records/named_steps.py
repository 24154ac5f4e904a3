"""The steps by name: what a pipeline asks for, and what a worker process is asked for, is a name and arguments.

Each module is imported only when its step is looked at.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pydantic import ConfigDict, validate_call

from trainer.common.progress import Progress, silent
from trainer.config.kinds import load
from trainer.records.steps import Step, find_artifact, find_published, make
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

ANY_TYPE = ConfigDict(arbitrary_types_allowed=True)


class Named(NamedTuple):
    """Where the function is that returns a step, and what the step is called, given the job and what it is made from.

    `needs` are the arguments whose artifacts must be there before the step can be named. A step that can begin
    something early takes `early`.
    """

    module: str
    function: str
    title: str
    needs: tuple[str, ...] = ()
    early: bool = False
    made_by: str | None = None
    """The function, as `module.function`, that finds or makes the artifact where all ranks make it together: each of
    them calls it. None where one process makes it."""


STEPS = {
    "curate": Named("trainer.curation.curate", "curate", "the decisions"),
    "tokenizer": Named("trainer.data.tokenizer_training", "make_tokenizer", "the tokenizer"),
    "tokenize": Named(
        "trainer.data.tokenization", "tokenize", "shards of {corpus}", ("decisions", "tokenizer"), early=True
    ),
    "encode": Named("trainer.kinds.kind", "encode", "encoded set {job.data.name}"),
    "reference": Named(
        "trainer.kinds.preference.kind", "reference_step", "reference of {job.data.name}", ("data",),
        made_by="trainer.kinds.preference.reference.make_reference",
    ),
}  # fmt: skip


class Do(Protocol):
    """Asks for the artifact of a step of a job, by the step's name: makes it here or as a task, or only looks."""

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef: ...


def open_step(name: str, store: Store, progress: Progress, **arguments: Any) -> Step:
    """A step, of its arguments as they are or as JSON: they are validated by the function's own annotations."""
    named = STEPS[name]
    function = load(f"{named.module}.{named.function}")
    checked = validate_call(config=ANY_TYPE)(function)
    step: Step = checked(store=store, progress=progress, **arguments)
    return step


def make_named(name: str, progress: Progress, job: Any, **made: Any) -> ArtifactRef:
    """Find or make the artifact of a step, of arguments as they are, or as a worker process is given them."""
    named = STEPS[name]
    if named.made_by is not None:
        together = validate_call(config=ANY_TYPE)(load(named.made_by))
        ref: ArtifactRef = together(job=job, progress=progress, **made)
        return ref
    store = Store(job["store"] if isinstance(job, Mapping) else job.store)
    early = {"early": True} if named.early else {}
    return make(open_step(name, store, progress, job=job, **made, **early))


def look_for(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef | None:
    """The published artifact of a step of a job, and intact if that is to be checked; None if it is to be made."""
    step = open_step(name, Store(job.store), silent(), job=job, **made)
    try:
        return find_artifact(step) if check else find_published(step)
    finally:
        step.release()


class NotMade(Exception):
    """What a step makes is not there."""


def only_look(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef:
    """Makes nothing: raises `NotMade` where the artifact of a step is to be made."""
    found = look_for(name, job, check, **made)
    if found is None:
        raise NotMade(name)
    return found


def here(progress: Progress) -> Do:
    """Makes each step in this process."""
    return lambda name, job, **made: make_named(name, progress, job, **made)


def in_ranks(runtime: Any, progress: Progress) -> Do:
    """Makes each step in ranks that all ask for it: on the first one, or by all of them together."""

    def do(name: str, job: Any, **made: Any) -> ArtifactRef:
        if STEPS[name].made_by is not None:
            return make_named(name, progress, job, **made)
        ref: ArtifactRef = runtime.on_first(lambda: make_named(name, progress, job, **made))
        return ref

    return do


def title_of(name: str, job: Any, **made: Any) -> str:
    """What a step is called."""
    return STEPS[name].title.format(job=job, **made)

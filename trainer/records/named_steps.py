"""The steps by name: what a pipeline asks for, and what a worker process is asked for, is a name and arguments.

Each module is imported only when its step is looked at.
"""

from typing import Any, NamedTuple, Protocol

from pydantic import validate_call

from trainer.common.progress import Progress, silent
from trainer.config.kinds import load
from trainer.records.steps import Step, find_artifact, find_published, make
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


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


STEPS = {
    "curate": Named("trainer.curation.curate", "curate", "the decisions"),
    "tokenizer": Named("trainer.data.tokenizer_training", "make_tokenizer", "the tokenizer"),
    "tokenize": Named(
        "trainer.data.tokenization", "tokenize", "shards of {corpus}", ("decisions", "tokenizer"), early=True
    ),
    "encode": Named("trainer.kinds.lookup", "encode", "encoded set {job.data.name}"),
}


class Do(Protocol):
    """Asks for the artifact of a step of a job, by the step's name: makes it here or as a task, or only looks."""

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef: ...


def open_step(name: str, store: Store, progress: Progress, **arguments: Any) -> Step:
    """A step, of its arguments as they are or as JSON: they are validated by the function's own annotations."""
    named = STEPS[name]
    function = load(f"{named.module}.{named.function}")
    checked = validate_call(config={"arbitrary_types_allowed": True})(function)
    step: Step = checked(store=store, progress=progress, **arguments)
    return step


def make_named(name: str, progress: Progress, **arguments: Any) -> ArtifactRef:
    """Find or make the artifact of a step, of arguments as a worker process is given them."""
    return make(open_step(name, Store(arguments["job"]["store"]), progress, **arguments, **_begun(name)))


def look_for(name: str, job: Any, check: bool = True, **made: Any) -> ArtifactRef | None:
    """The published artifact of a step of a job, and intact if that is to be checked; None if it is to be made."""
    step = open_step(name, Store(job.store), silent(), job=job, **made)
    try:
        return find_artifact(step) if check else find_published(step)
    finally:
        step.release()


def here(progress: Progress) -> Do:
    """Makes each step in this process."""

    def do(name: str, job: Any, **made: Any) -> ArtifactRef:
        return make(open_step(name, Store(job.store), progress, job=job, **made, **_begun(name)))

    return do


def _begun(name: str) -> dict[str, bool]:
    return {"early": True} if STEPS[name].early else {}


def title_of(name: str, job: Any, **made: Any) -> str:
    """What a step is called."""
    return STEPS[name].title.format(job=job, **made)

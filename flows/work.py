"""What every command that runs a job does, whichever command line it came by, from its words to its exit status.

command.py   `headrace`: its first moment, before anything heavy is loaded
commands/    the commands of `headrace`, with their arguments, options and help
cli.py       `python -m flows.X`: the same for one flow each
work.py      here both meet: the job is read, and refused if it is wrong, before Prefect is loaded, which takes seconds
running.py   runs the flow; needs Prefect
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from flows import STOP_SECONDS
from flows.schemas import read_with, reader_of, schema_for
from flows.seeds import run_seeds, with_seeds
from flows.temporary_server import start_loading
from tasks.stage import load_early
from trainer.common.errors import EXIT_PREEMPTED, ConfigError, PipelineError, Preempted
from trainer.common.process import loading
from trainer.common.stopping import check_stop, install_signal_handlers, leave, stoppable
from trainer.common.transient import exit_status
from trainer.config.files import Job, read_values, split_settings, validate_job
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.kinds import KINDS, marked
from trainer.config.labelled import PredictJob
from trainer.config.runs import RunJob

if TYPE_CHECKING:
    from prefect import Flow

NEEDED_FIRST: dict[type[BaseModel], str] = {
    PrepareJob: "trainer.data.tokenizer_training",
    EvaluateJob: "trainer.kinds.pretraining.evaluate",
    PredictJob: "trainer.kinds.labelled.predict",
}
"""The module whose libraries the first stage of the flow on such a job needs, which trains nothing."""

Found = tuple["Flow[[Any], Any]", Callable[[Any, Any], None]]
"""A flow, and what prints for people what it made."""


def carry_out(
    schema: type[Job], path: str, words: list[str], find: Callable[[], Found], dry: bool = False, as_json: bool = False,
    seeds: str | None = None,
) -> int:  # fmt: skip
    """Run the flow that `find` loads on the job of a file, or say what it would do. Returns the exit status.

    With `seeds`, as `0,1,2`, once with each. 0, 2 on bad input, 75 if it is to be run again.
    """
    install_signal_handlers(STOP_SECONDS)

    def work() -> None:
        job = load(schema, path, words)
        jobs = [job] if seeds is None else with_seeds(job, seeds)
        if dry:
            from flows.dry_runs import dry_run

            dry_run(jobs[0], as_json)  # what is checked and planned is the same with each seed
            return
        server = start_loading()
        if (first := _needed_first(job)) is not None:
            load_early(*first)
        with loading():
            flow, show = find()
            from flows.running import run
        if server is not None:
            server.serve()
        if seeds is not None:
            run_seeds(lambda each: run(flow, each), jobs, show, as_json)
            return
        made = run(flow, job)
        if as_json:
            from trainer.common.formats import show_json

            show_json(made)
        else:
            show(job, made)

    return leave(status_of(work))


def _needed_first(job: BaseModel) -> list[str] | None:
    """The module that the first stage of the flow on a job needs: what trains looks at the job first.

    None is named where a run of that name is finished, as there may be nothing to compute; and there is no stage at
    all of a job that only moves or removes something.
    """
    if not isinstance(job, RunJob):
        return [NEEDED_FIRST[type(job)]] if type(job) in NEEDED_FIRST else None
    with loading():
        from trainer.kinds.kind import kind_of
        from trainer.pipelines.pipeline import has_finished
        from trainer.store.storage import Store

    kind = kind_of(job)
    done = kind.is_light and "://" not in job.store and has_finished(Store(job.store), job)
    return [] if done else [kind.preflight.module]


def status_of(work: Callable[[], int | None]) -> int:
    """Do a command's work; returns its exit status: what it returns, or, after one message, that of its error."""
    try:
        with stoppable():
            check_stop()
            return work() or 0
    except Preempted as stop:
        print(stop, file=sys.stderr)
        return EXIT_PREEMPTED
    except PipelineError as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        return exit_status(error)


def load(schema: type[Job], path: str, words: list[str]) -> Job:
    """Read a job; the file of a whole pipeline also serves to prepare its data. Raises `ConfigError`."""
    path, settings = split_settings(path, words)
    read_by: list[type[BaseModel]] = [PipelineJob, PrepareJob] if schema is PrepareJob else read_with(schema)
    values = read_values(path, settings, read_by)
    schema = cast(type[Job], schema_for(schema, values))
    try:
        if schema is PrepareJob and "model" in values:
            return cast(Job, validate_job(PipelineJob, values, path).preparation())
        return validate_job(schema, values, path)
    except ConfigError:
        _require_kind(schema, values, path)
        raise


def _require_kind(schema: type[Job], values: dict[str, Any], path: str) -> None:
    """Raise `ConfigError` for the file of another kind of training, with the command that reads it."""
    own = PipelineJob if schema is PrepareJob else schema
    kinds, found = [kind.schema for kind in KINDS], marked(values)
    if own in kinds and found and own not in [kind.schema for kind in found]:
        meant = found[0]
        raise ConfigError(
            f"configuration {path} is one for `headrace {reader_of(meant.schema)}`: its data names `{meant.mark}`, "
            f"which `headrace {reader_of(schema)}` does not read"
        )

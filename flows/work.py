"""Run a job from the command line: read it, run its flow, and return the exit status.

command.py   entry point of `headrace`, and of `python -m flows.X` for the command of one flow; imports nothing heavy
commands/    the commands, with their arguments, options and help
work.py      called by the commands that run a flow; reads and checks the job before Prefect is loaded, which takes
             seconds
running.py   runs the flow; needs Prefect
"""

from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel

from flows import FLOW_COMMANDS
from flows.schemas import TITLE, read_with, reader_of, schema_for, schema_of
from flows.seeds import run_seeds, with_seeds
from flows.temporary_server import start_loading
from tasks.stage import load_early
from trainer.common.display import any_reader, escape_unprintable
from trainer.common.errors import EXIT_PREEMPTED, ConfigError, PipelineError, Preempted
from trainer.common.process import loading, print_error
from trainer.common.stopping import check_stop, leave, stoppable
from trainer.common.transient import exit_status
from trainer.config.files import Job, read_values, split_settings, validate_job
from trainer.config.jobs import PipelineJob, PrepareJob
from trainer.config.kinds import KINDS, load, marked
from trainer.config.runs import RunJob


def carry_out(
    command: str, path: str, words: list[str], dry: bool = False, as_json: bool = False, seeds: str | None = None
) -> int:
    """Run a command's flow on the job in a file, or print what it would do; return the exit status.

    With `seeds`, such as `0,1,2`, run it once with each. The status is 0, 2 on bad input, 75 if it should be run again.
    """
    of = FLOW_COMMANDS[command]

    def work() -> None:
        job = read_job(schema_of(command)[TITLE], path, words)
        jobs = [job] if seeds is None else with_seeds(job, seeds)
        if dry:
            from flows.dry_runs import dry_run

            dry_run(jobs[0], as_json, of.needs)  # checks and plan do not depend on the seed
            return
        if isinstance(job, PrepareJob):
            with loading():
                from trainer.data.sources import require_local
            for corpus in job.data.corpora:
                require_local(corpus)
        server = start_loading()
        if (first := _needed_first(job)) is not None:
            load_early(*first)
        with loading():
            flow, show = load(of.flow), load(of.show)
            from flows.running import run
        if server is not None:
            server.serve()
        if seeds is not None:
            run_seeds(lambda each: run(flow, each), jobs, show, as_json)
            return
        made = run(flow, job)
        if as_json:
            from trainer.common.display import show_json

            show_json(made)
        else:
            with any_reader():
                show(job, made)

    return leave(status_of(work))


def _needed_first(job: BaseModel) -> list[str] | None:
    """The module that the first stage of a job's flow needs, in a list; for training jobs, that of the preflight.

    The list is empty if a run of that name is finished, because there may be nothing to compute. None for a job without
    stages, such as a promotion.
    """
    if not isinstance(job, RunJob):
        first = FLOW_COMMANDS[reader_of(type(job))].first
        return None if first is None else [first]
    with loading():
        from trainer.kinds.kind import kind_of
        from trainer.pipelines.pipeline import has_finished
        from trainer.store.storage import Store

    kind = kind_of(job)
    done = kind.is_light and "://" not in job.store and has_finished(Store(job.store), job)
    return [] if done else [kind.preflight.module]


def status_of(work: Callable[[], int | None]) -> int:
    """Run a command's work; return its status, or print its error's message and return the error's status."""
    escape_unprintable()
    try:
        with stoppable():
            check_stop()
            return work() or 0
    except Preempted as stop:
        print_error(str(stop))
        return EXIT_PREEMPTED
    except PipelineError as error:
        print_error(f"\n{type(error).__name__}: {error}")
        return exit_status(error)


def read_job(schema: type[Job], path: str, words: list[str]) -> Job:
    """Read a job; `prepare` also accepts the file of a whole pipeline. Raises `ConfigError`."""
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
    """Raise `ConfigError` with the right command if a file is for another kind of training."""
    own = PipelineJob if schema is PrepareJob else schema
    kinds, found = [kind.schema for kind in KINDS], marked(values)
    if own in kinds and found and own not in [kind.schema for kind in found]:
        meant = found[0]
        raise ConfigError(
            f"configuration {path} is for `headrace {reader_of(meant.schema)}`: its data has the key `{meant.mark}`, "
            f"which `headrace {reader_of(schema)}` does not read"
        )

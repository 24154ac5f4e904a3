"""What reads a store back, each with an outcome that is the same whenever nothing was wrong."""

import hashlib
from collections.abc import Callable
from typing import Any

from tests.trainer.fuzz.world import CHAMPION, FINISHED, RIVAL, STOPPED, TUNED, World
from tests.trainer.made import encode, prepare
from trainer.common.errors import ArtifactError, PipelineError
from trainer.common.progress import silent
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob, GarbageJob
from trainer.curation.showing import StoredDecisions
from trainer.data.tokenization import STARTED
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.models.pretrained import find_model
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.pipelines.explain import explain_job
from trainer.records.plans import PreparedData
from trainer.registry.compare_runs import compare
from trainer.registry.curves import draw_curves
from trainer.registry.facts import read_facts
from trainer.registry.garbage import collect
from trainer.registry.leftovers import find_leftovers
from trainer.registry.lineage import check, trace
from trainer.registry.listing import find_runs
from trainer.registry.promotion import find_measured, look, moves
from trainer.registry.report import make_report, report_content
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

Reader = Callable[[World], Any]
LEARNING_RATE = 2e-2
"""Of the interrupted run."""


def list_runs(world: World) -> Any:
    return [(*line[:3], *line[4:]) for line in find_runs(world.open)]


def compare_runs(world: World) -> Any:
    return compare(world.open, ["finished", "stopped"])


def find_garbage(world: World) -> Any:
    job = GarbageJob(store=str(world.store), older_than_days=0, runs_older_than_days=0)
    return sorted(found.key for found in collect(job)), sorted(left.key for left in find_leftovers(world.open))


def gate(world: World) -> Any:
    store, options = world.open, world.pretraining(FINISHED).promotion
    assert options is not None
    found = find_measured(store, FINISHED)
    scores, basis = (found.figures(), found.measured_on) if found else ({}, None)
    told = []
    for name in (CHAMPION, RIVAL):
        verdict = found and look(store, options.model_copy(update={"name": name}), FINISHED, scores, basis)
        history = [move.model_dump() for move in moves(store, name)]
        told.append((verdict, history, find_model(store, f"models/{name}/champion").files))
    return scores, told


def explain(world: World) -> Any:
    jobs = (world.pretraining(FINISHED), world.pretraining(STOPPED, learning_rate=LEARNING_RATE), world.tuning())
    stages = [stage for job in jobs for stage in explain_job(job)]
    return [f"{stage.stage} {stage.verdict} {stage.key}: {'; '.join(stage.reasons)}" for stage in stages]


def lineage(world: World) -> Any:
    store, told = world.open, []
    for run in (FINISHED, TUNED):
        traced = trace(store, run)
        told.append((traced["raw_files"], traced["scores"], traced["promotions"], traced["training"]["steps"]))
        told.append([" ".join(finding) for finding in check(store, traced) if finding.state != "same"])
    return told


def prepare_data(world: World, verify: bool = False) -> Any:
    store, quiet = world.open, silent()
    data = prepare(world.pretraining(FINISHED).preparation().model_copy(update={"verify": verify}), quiet)
    keys = [data.tokenizer.key, *(ref.key for ref in data.shards), encode(world.tuning(), quiet).key]
    return {key: digests(store, key) for key in keys}


def verify_data(world: World) -> Any:
    """Prepare, and read all that is prepared already."""
    return prepare_data(world, verify=True)


def decide_anew(world: World) -> Any:
    """Decide again, of what was measured before, which documents stay."""
    store = world.open
    for name in store.names("decisions"):
        store.delete(f"decisions/{name}")
    return prepare_data(world), show_decisions(world)


def show_decisions(world: World) -> Any:
    decided = StoredDecisions(world.open, None)
    return decided.manifest.details["table"], [list(decided.examples(reason, None, 2)) for reason in decided.reasons]


def train_anew(world: World) -> Any:
    """Train the interrupted run to its end, prepared before as its command does it; once more if damage is met on the
    way.
    """
    try:
        return finish(world)
    except ArtifactError:
        return finish(world)


def complete(world: World) -> Any:
    """Prepare a set of shards whose making was interrupted."""
    store = world.open
    for name in store.names("shards"):
        if name.startswith("lines-"):
            store.delete(f"shards/{name}/manifest.json")
            if not store.exists(f"shards/{name}/{STARTED}"):
                store.write_json(f"shards/{name}/{STARTED}", {})
    return prepare_data(world)


def take(world: World) -> Any:
    """A finished run, found again or published anew."""
    train(world.pretraining(FINISHED), silent())
    return digests(world.open, f"{FINISHED}/final"), pointers(world.open, FINISHED)


def finish(world: World) -> Any:
    """Train the interrupted run to its end."""
    store = world.open
    train(world.pretraining(STOPPED, learning_rate=LEARNING_RATE), silent())
    losses = [(each["kind"], each["step"], each["loss"]) for each in read_records(store, STOPPED) if "loss" in each]
    return digests(store, f"{STOPPED}/final"), losses, pointers(store, STOPPED)


def go_on(world: World) -> Any:
    """The same on data that was prepared, which is not looked at first."""
    store, quiet = world.open, silent()
    refs = read_facts(store, FINISHED).config["data"]
    data = PreparedData(
        tokenizer=ArtifactRef(**refs["tokenizer"]), shards=[ArtifactRef(**ref) for ref in refs["shards"]]
    )
    train(world.pretraining(STOPPED, learning_rate=LEARNING_RATE), quiet, data)
    return digests(store, f"{STOPPED}/final")


def tune(world: World) -> Any:
    train(world.tuning(), silent())
    return digests(world.open, f"{TUNED}/final"), pointers(world.open, TUNED)


def evaluate(world: World) -> Any:
    return _evaluate(world, 4), _evaluate_best(world, 2)


def measure_anew(world: World) -> Any:
    """Figures that were not measured before."""
    return _evaluate(world, 3)


def _evaluate(world: World, windows: int) -> Any:
    job = evaluation_of(world.pretraining(FINISHED), FINISHED)
    options = job.evaluation.model_copy(update={"max_windows": windows})
    found = evaluate_checkpoint(job.model_copy(update={"evaluation": options}), silent())
    return found.groups, found.total, found.samples


def _evaluate_best(world: World, windows: int) -> Any:
    options = EvaluationConfig(max_windows=windows)
    job = EvaluateJob(store=str(world.store), checkpoint=f"{FINISHED}/checkpoint-best", evaluation=options)
    return evaluate_checkpoint(job, silent()).groups


def score(world: World) -> Any:
    result = evaluate_run(world.tuning(), TUNED, silent())
    return result.groups, result.classification, result.predictions, digests(world.open, f"{TUNED}/predictions")


def score_anew(world: World) -> Any:
    """The fine-tuned model measured again; where that is refused, other readers find the figures of before."""
    store, key = world.open, f"{TUNED}/eval.json"
    before = store.read_bytes(key) if store.exists(key) else None
    store.delete(key)
    try:
        return score(world)
    except PipelineError:
        if before is not None:
            store.write_bytes(key, before)
        raise


def report(world: World) -> Any:
    return [make_report(world.open, run).markdown for run in (FINISHED, TUNED)]


def draw(world: World) -> Any:
    """What a report tells and shows of the runs' records; each chart's lines, and not how they are drawn."""
    found = []
    for run in (FINISHED, TUNED):
        facts = read_facts(world.open, run)
        content = report_content(facts)
        found.append(
            (content.verdict, content.tiles, draw_curves(content.curves[:1], facts.records, facts.steps).keys())
        )
    return found


READERS: dict[str, Reader] = {
    "list": list_runs, "compare": compare_runs, "garbage": find_garbage, "gate": gate, "explain": explain,
    "lineage": lineage,
    "prepare": prepare_data, "verify": verify_data, "interrupted": complete, "decide": decide_anew,
    "decisions": show_decisions, "take": take, "finish": finish, "go_on": go_on,
    "again": train_anew, "tune": tune,
    "evaluate": evaluate, "measure": measure_anew, "score": score, "score_anew": score_anew, "report": report,
    "draw": draw,
}  # fmt: skip

TELLING = frozenset(("list", "compare", "garbage", "explain", "lineage", "report", "draw", "decisions"))
"""Readers that people read: their outcome may differ if it says of the damaged file that it is damaged, or left out."""

SHOWING = TELLING | {"gate", "evaluate", "score"}
"""Readers that hand on what is recorded; an evaluation that was made already is."""


def digests(store: Store, key: str) -> dict[str, str]:
    """What a folder's files hold, but for those that tell times."""
    names = [name for name in store.names(key) if name not in ("manifest.json", "README.md")]
    return {name: hashlib.sha256(store.read_bytes(f"{key}/{name}")).hexdigest() for name in names}


def pointers(store: Store, run: str) -> list[str]:
    return sorted([name for name in store.names(run) if name.startswith("checkpoint-")] + store.names(f"{run}/epochs"))

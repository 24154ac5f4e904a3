"""A run's key, identity and config.json; refuses to continue a run with other settings or data."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainer.common.errors import ArtifactError, RunError
from trainer.config.evaluation import PREFIX, SelectionConfig
from trainer.config.jobs import PrepareJob
from trainer.config.models import LoraConfig
from trainer.config.runs import RunJob
from trainer.config.training import MuonConfig
from trainer.models.base_card import describe_base
from trainer.models.pretrained import Checkpoint
from trainer.models.weights import SETTINGS
from trainer.records.fields import list_changes
from trainer.records.lease import LEASE, is_being_removed
from trainer.records.plans import PreparedData
from trainer.records.run_names import made_at, suggest_runs
from trainer.records.sealed import read_pointer, read_sealed, write_sealed
from trainer.store.artifact_files import Depth, is_intact
from trainer.store.manifest import ArtifactRef, Input, Manifest, fingerprint, read_manifest, recall_manifest
from trainer.store.names import BEST, CONFIG, EPOCHS, FINAL, FINAL_KIND, LAST, PLAN
from trainer.store.storage import Store

SHARDS_OF = "shards of "
"""Begins the role of a corpus's shards in a run's inputs."""

FORMAT = 6

Job = TypeVar("Job", bound=RunJob)

TrainingData = PreparedData | ArtifactRef
"""What a job trains on: a tokenizer and shards, or an encoded set, labelled or of conversations."""

OPERATIONAL = {
    "log_every", "evaluate_every", "save_every", "keep_last", "keep_epochs", "processes", "device", "micro_batch",
    "compile", "gradient_checkpointing", "deterministic", "sharding", "cpu_offload", "sum_each_micro_batch",
}  # fmt: skip
"""Training settings that affect how a run is executed and monitored, but not its result (up to rounding).

Two exceptions: if a model balances its routers, the result depends on what is in one forward pass, and so on
`micro_batch` and the number of ranks. They are not part of the identity even then, because the number of ranks is
unknown when a run is identified. If training returns to its last checkpoint, that depends on `save_every`.
"""


UNTRAINED = ("card", "evaluation", "promotion")
"""Parts of a job that do not affect a finished run; the parts of an evaluation that do are in its identity."""

IN_TRAINING = {*SelectionConfig.model_fields, "during_training"}
"""Settings of an evaluation that decided which checkpoint of a finished run is the best; so did the tasks of lm-eval if
`best_by` names one of their figures.
"""

EFFECTIVE = {"muon", "objective", "masking", "packing", "document_mask"}
"""Settings that identify a run by their effective value, which depends on other settings."""


NOWHERE: Mapping[str, str | None] = {}


def data_keys(data: TrainingData) -> list[str]:
    """The keys of the shards or the encoded set that a run is trained on and its model is measured on."""
    return [data.key] if isinstance(data, ArtifactRef) else [ref.key for ref in data.shards]


class Run(NamedTuple):
    """A run's key and what determines its outcome."""

    key: str
    fingerprint: str
    identity: dict[str, Any]
    origin: str | None = None
    """The run that this one forks."""
    start: dict[str, Any] | None = None
    """Where the pretrained model was found."""
    base: dict[str, Any] | None = None
    """The pretrained model as described in the model card."""
    inputs: dict[str, Input] = {}  # noqa: RUF012 - never written to
    """Its inputs, by role: the artifacts that it is trained on, and the runs of this store that it starts from."""
    renews_data: bool = False
    """Whether a part of its data that is not trained on may change: a test split."""
    judged_by: str = ""
    """Fingerprint of what determines the figure that selects the best checkpoint, even if that does not affect the
    final model.
    """
    form: str = "merged"
    """The form of its final model: "merged" (all weights) or "adapter"; both are made from the same checkpoint."""


def make_run(
    job: RunJob,
    made_from: Mapping[str, Any],
    selection: Mapping[str, Any],
    data: Mapping[str, ArtifactRef],
    pretrained: Checkpoint | None = None,
    places: Mapping[str, str | None] = NOWHERE,
    renews_data: bool = False,
    effective: Mapping[str, Any] | None = None,
) -> Run:
    """The run of a job, given its data and model, and what determines the best checkpoint.

    `data` are the artifacts that it is trained on, by role; `made_from` identifies data and model; `pretrained` is the
    model that it starts with; `places` are further keys and paths that it needs; `effective` are the effective values
    of settings that depend on others. Evaluation settings that only affect the report of the finished model are not
    part of the identity.
    """
    training = job.training
    settings: dict[str, Any] = one_spelling(training.model_dump(exclude=OPERATIONAL | EFFECTIVE))
    settings |= effective or {}
    if training.optimizer == "muon":
        own = training.muon or MuonConfig()
        same = {"learning_rate": None} if own.learning_rate == training.learning_rate else {}  # the default, spelt out
        settings["muon"] = one_spelling(own.model_copy(update=same).model_dump())
    identity: dict[str, Any] = {"format": FORMAT, "training": settings, **made_from}
    if training.early_stopping is not None or training.final == "best":
        identity["selection"] = {"evaluate_every": training.evaluate_every, **selection}
    name = fingerprint(identity)
    key = f"runs/{job.run or f'{job.name}-{name[:8]}'}"
    run = _fork(Store(job.store), key, name, identity) if job.resume == "fork" else Run(key, name, identity)
    form = job.model.lora.publish if job.model.lora else "merged"
    inputs = {role: ref.as_input() for role, ref in data.items()}
    start = base = model = None
    if pretrained is not None:
        origin, model = pretrained.origin, pretrained.key
        start = {"origin": origin, "key": model}
        base = describe_base(str(job.model.pretrained), Path(pretrained.folder), origin)
    inputs |= _fork_of(run.origin) | inputs_at(Store(job.store), {"model": model, **places})
    judged_by = fingerprint(dict(selection))
    return run._replace(start=start, base=base, inputs=inputs, renews_data=renews_data, judged_by=judged_by, form=form)


def starting_with(job: Job, start: dict[str, Any] | None) -> Job:
    """The job of a run with the key of the model that the run starts from, if that is in the store: the job's own name
    for it, such as a champion's, may mean another model later.
    """
    if not start or start["key"] is None:
        return job
    return job.model_copy(update={"model": job.model.model_copy(update={"pretrained": start["key"]})})


def inputs_at(store: Store, places: Mapping[str, str | None]) -> dict[str, Input]:
    """The runs and artifacts of this store at the given keys and paths, by role; those outside it are left out."""
    found = {role: place and made_at(store, place) for role, place in places.items()}
    return {role: Input(key=key, content="") for role, key in found.items() if key}


def _fork_of(run: str | None) -> dict[str, Input]:
    return {"fork of": Input(key=run, content="")} if run else {}


def _plain(inputs: Mapping[str, Input]) -> dict[str, Any]:
    return {role: each.model_dump() for role, each in inputs.items()}


def _fork(store: Store, key: str, name: str, identity: dict[str, Any]) -> Run:
    """The run itself if its settings are the same, else a fork, new or already started."""
    fork = Run(f"{key}-fork-{name[:8]}", name, identity, origin=key)
    if store.exists(f"{fork.key}/{CONFIG}"):
        _require_same_origin(store, fork.key)
        return fork
    earlier = read_sealed(store, f"{key}/{CONFIG}")
    if earlier is None:
        raise _nothing_to_fork(store, key)
    if earlier["fingerprint"] == name:
        return Run(key, name, identity)
    fixed = ("model", "tokenizer", "lora", "quantize")
    before, now = ({part: each.get(part) for part in fixed} for each in (earlier["identity"], identity))
    if before != now:
        raise RunError(f"{store.path(key)} cannot be forked with another model: {'; '.join(list_changes(before, now))}")
    return fork


def _require_same_origin(store: Store, fork: str) -> None:
    """Raise `RunError` if the run that a fork began with was replaced by one with other settings or data.

    A fork that has begun no longer needs that run, which may be missing or damaged.
    """
    with suppress(ArtifactError):
        begun = (read_sealed(store, f"{fork}/{CONFIG}") or {}).get("fork") or {}
        origin = read_sealed(store, f"{begun['run']}/{CONFIG}") if "fingerprint" in begun else None
        if origin is not None and origin["fingerprint"] != begun["fingerprint"]:
            raise RunError(
                f"{store.path(fork)} was forked from another run that was in {store.path(begun['run'])} before; remove "
                f"{store.path(fork)} to fork the present one, or set another `run`"
            )


def check_origin(store: Store, job: RunJob) -> None:
    """Raise `RunError` if the run to fork is missing, before the job's data is prepared, which may take long."""
    if job.resume != "fork":
        return
    if not any(name == job.run or name.startswith(f"{job.run}-fork-") for name in store.names("runs")):
        raise _nothing_to_fork(store, f"runs/{job.run}")


def _nothing_to_fork(store: Store, key: str) -> RunError:
    hint = suggest_runs(store, key.removeprefix("runs/"))
    return RunError(f"there is no {store.path(key)} to fork; set another `run`, or remove `resume`; {hint}")


def claim_run(
    store: Store,
    run: Run,
    job: RunJob,
    data: TrainingData,
    find_fork: Callable[[], dict[str, str] | None] = lambda: None,
) -> None:
    """Write the run's config.json, or check that it is this run's (`check_settings`). `find_fork` returns the
    checkpoint that a new run takes its weights from.
    """
    earlier = check_settings(store, run)
    fork = earlier["fork"] if earlier else find_fork()
    write_sealed(store, f"{run.key}/{CONFIG}", describe_run(run, job, data, fork))


def check_settings(store: Store, run: Run) -> dict[str, Any] | None:
    """The config.json of a run, if it has started. Raises `RunError` with the differences if the folder contains a run
    with other settings or data.
    """
    earlier = read_sealed(store, f"{run.key}/{CONFIG}")
    if earlier is not None and earlier["fingerprint"] != run.fingerprint:
        differences = "; ".join(list_changes(earlier["identity"], run.identity)) or "its format"
        raise RunError(
            f"{store.path(run.key)} was trained with other settings: {differences}. Set another `run`, remove "
            "`run` for a generated name, restore the settings, or start a new run from its weights with `resume: fork`"
        )
    return earlier


def describe_run(run: Run, job: RunJob, data: TrainingData, fork: dict[str, str] | None) -> dict[str, Any]:
    """The content of a run's config.json; `fork` is the checkpoint that a fork takes its weights from."""
    return {
        "fingerprint": run.fingerprint,
        "identity": run.identity,
        "job": recorded(job),
        "data": _without_reused(data.model_dump()),
        "inputs": {**_plain(run.inputs), **_plain(_fork_of(fork["run"] if fork else None))},
        "fork": fork,
        "start": run.start,
        "base": run.base,
    }


def recorded(job: RunJob | PrepareJob) -> dict[str, Any]:
    """A job as stored in a run's config.json: without the engine, which may differ from start to start."""
    return job.model_dump(mode="json", exclude={"engine"})


def note_untrained(store: Store, run: Run, job: RunJob, data: TrainingData) -> None:
    """Update a finished run's config.json with the job's current settings that do not affect training: the card, the
    evaluation, the gate, and the test split.

    Measurements on another test split are kept until this one is measured. Raises `ArtifactError` if the run or the
    data is removed at the same time.
    """
    earlier = read_sealed(store, f"{run.key}/{CONFIG}")
    if earlier is None or (config := with_untrained(earlier, run, job, data)) == earlier:
        return
    write_sealed(store, f"{run.key}/{CONFIG}", config)
    check_begun(store, run)


def with_untrained(config: dict[str, Any], run: Run, job: RunJob, data: TrainingData) -> dict[str, Any]:
    """A run's config.json with the job's untrained settings, and with its encoded set if that differs, which is only
    possible in the test split. What decided the best checkpoint stays as it was in training.
    """
    settings, before = recorded(job), config["job"]["evaluation"]
    noted = {**config, "job": {**config["job"], **{part: settings[part] for part in UNTRAINED}}}
    decided = IN_TRAINING | ({"harness"} if str(before.get("best_by")).startswith(PREFIX) else set())
    noted["job"]["evaluation"] |= {name: before[name] for name in decided & before.keys()}
    if run.renews_data and config.get("data", {}).get("key") != (renewed := _without_reused(data.model_dump()))["key"]:
        inputs = {**config["inputs"], **_plain(run.inputs)}
        noted |= {"data": renewed, "inputs": inputs, "job": {**noted["job"], "data": settings["data"]}}
    return noted


def check_begun(store: Store, run: Run) -> None:
    """Check again that a claimed run and its inputs exist: its data, and the run of this store whose weights it uses.

    Called after the claim is written: a removal first marks what it removes and then checks what runs need. Raises
    `ArtifactError` if an input was removed at the same time.
    """
    for key in (*(each.key for each in run.inputs.values()), run.key):
        if is_being_removed(store, key):
            raise ArtifactError(
                f"{store.path(key)} was removed while {run.key} started; run the job again, including its preparation"
            )


def finished_run(store: Store, run: Run, depth: Depth = "all") -> ArtifactRef | None:
    """The run's final model, if it is published in the requested form and intact."""
    place = f"{run.key}/{FINAL}"
    manifest = recall_manifest(store, place, FINAL_KIND)
    if manifest is None or manifest.details["run"] != run.fingerprint or final_form(manifest) != run.form:
        return None
    if not is_intact(store, place, manifest, depth):
        return None
    return ArtifactRef(key=run.key, fingerprint=run.fingerprint, size=manifest.size(), reused=True)


def is_whole(store: Store, run: Run, job: RunJob, data: TrainingData) -> bool:
    """Whether a finished run's records can all be read and match the job, and no killed process left its lease; if not,
    `train` writes only these again, and removes that.
    """
    if store.exists(f"{run.key}/{LEASE}"):
        return False
    pointers = [LAST, BEST, *(f"{EPOCHS}/{name}" for name in store.names(f"{run.key}/{EPOCHS}"))]
    try:
        config, plan = read_sealed(store, f"{run.key}/{CONFIG}"), read_sealed(store, f"{run.key}/{PLAN}")
        for pointer in pointers:
            read_pointer(store, f"{run.key}/{pointer}")
    except ArtifactError:
        return False
    return config is not None and plan is not None and with_untrained(config, run, job, data) == config


def final_manifest(store: Store, run_key: str) -> Manifest | None:
    """The manifest of a run's final model, or None."""
    return read_manifest(store, f"{run_key}/{FINAL}", FINAL_KIND)


def final_form(manifest: Manifest) -> str:
    """The form of a published final model, as in `Run.form`."""
    return "adapter" if SETTINGS in manifest.digests() else "merged"


def _without_reused(values: Any) -> Any:
    """References without the mark whether they were just created or reused, which is not part of the run."""
    if isinstance(values, dict):
        return {key: _without_reused(value) for key, value in values.items() if key != "reused"}
    return [_without_reused(value) for value in values] if isinstance(values, list) else values


def lora_identity(lora: LoraConfig) -> Any:
    """An adapter's settings with the default form of the final model, because the form does not affect training."""
    return one_spelling(lora.model_copy(update={"publish": "merged"}).model_dump())


def one_spelling(value: Any) -> Any:
    """Whole numbers as integers: a browser form turns 0.0 into 0, and there is no schema here to tell the types."""
    if isinstance(value, dict):
        return {key: one_spelling(each) for key, each in value.items()}
    if isinstance(value, list):
        return [one_spelling(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

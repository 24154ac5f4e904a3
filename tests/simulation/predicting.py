"""Predicting with finished models: the real code finds models and publishes predictions; a model predicts its sum."""

from pathlib import Path

from tests.simulation.bucket import URL
from tests.simulation.clients import MODEL, whole_fold
from tests.simulation.preparing import WrongRead
from tests.simulation.world import World, pause
from trainer.config.labelled import PredictJob
from trainer.kinds.labelled.predictions import (
    FILE,
    KIND,
    find_predictions,
    identify_predictions,
    predictions_step,
    summarise,
)
from trainer.records.results import PredictedTexts
from trainer.records.steps import publish
from trainer.registry.promotion import key_of
from trainer.store.artifact_files import fetch_artifact
from trainer.store.manifest import MANIFEST
from trainer.store.names import FINAL
from trainer.store.storage import Store


def predict_all(world: World, names: list[str], raw: Path, told: list[str]) -> None:
    """Predict with each finished run and with the champion; record the keys of finished predictions."""
    store = Store(URL)
    places = {name: f"runs/{name}/{FINAL}/{MANIFEST}" for name in names} | {key_of(MODEL): key_of(MODEL)}
    for model, place in places.items():
        pause(world, 300.0)
        if store.exists(place):
            told.append(predict(store, model, raw).key)


def predict(store: Store, model: str, raw: Path) -> PredictedTexts:
    job = PredictJob.model_validate(
        {"store": URL, "model": model, "data": {"source": "jsonl", "paths": [f"{raw}/new.jsonl"]}}
    )
    wanted = identify_predictions(store, job)
    total = Path(wanted.model.folder, "total.txt").read_text()
    if total != whole_fold(str(wanted.model.key).split("/")[1]):
        raise WrongRead(f"{model} is the model {wanted.model.key}, whose sum is {total!r}")
    step = predictions_step(store, job, wanted)
    if (earlier := find_predictions(step)) is not None:
        require_predicted(store, step.key, total)
        return earlier
    store.sweep()
    with store.staging(key=step.key) as folder:
        (folder / FILE).write_text(total)
        details = {"model": {"name": model}, "texts": 1, "bad_records": 0, "truncated": 0, "predicted": {}}
        return summarise(step.key, publish(step, folder, details))


def require_predicted(store: Store, key: str, total: str) -> None:
    """Raise `WrongRead` if a prediction is not the model's sum."""
    if (found := Path(fetch_artifact(store, key, KIND), FILE).read_text()) != total:
        raise WrongRead(f"{key} holds {found!r}")

"""The work during which the power is cut, and how it resumes: with the same result, or with a message about damage."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.power_cuts.deeds import main as do
from tests.power_cuts.images import Image, lay_out
from tests.power_cuts.recording import CONTENTS, Event, read
from tests.processes import start_warm
from tests.support import curve, held_out_losses, lasting_digests, published, small_values, write_config, write_corpora
from tests.trainer.chats import chat_model
from tests.trainer.curating import curated_job, prose, write_documents
from tests.trainer.labelled_pairs import finetune_values, write_pairs
from tests.trainer.preferences import preference_values, write_preferences
from tests.trainer.stocked_store import contents
from trainer.records.lease import HOLDS
from trainer.registry.promotion import moves
from trainer.store.storage import Store

NOTES = "notes"


@dataclass(frozen=True)
class Trial:
    """A deed on a folder's store: `before` prepares the store, `module` with its arguments runs the deed, and
    `outcome` returns its results by name.

    `common` is a folder for files that all its stores share, such as raw text or a model.
    """

    before: Callable[[Path, Path], None]
    module: str
    arguments: Callable[[Path, Path], list[object]]
    outcome: Callable[[Path], Mapping[str, Any]]

    def record(self, common: Path, bug: str = "") -> list[Event]:
        """Run the deed and record its events, with a bug of `planted` if given; the resulting store is `clean` in the
        common folder.
        """
        folder = common / "clean"
        folder.mkdir(parents=True)
        self.before(common, folder)
        armed = [folder / "store", common / NOTES, bug, "--", self.module, *self.arguments(common, folder)]
        ended = start_warm(folder / "said", "tests.power_cuts.recording", *armed).wait(600.0)
        if ended.status != 0:
            raise RuntimeError(ended.stderr)
        return read(common / NOTES)

    def judge(self, common: Path, image: Image, expected: Mapping[str, Any]) -> str:
        """Run the deed again on the image of a cut; return what is wrong, or an empty text."""
        folder = Path(mkdtemp(dir=common))
        (folder / "store").mkdir()
        lay_out(image, common / NOTES / CONTENTS, folder / "store")
        ended = start_warm(folder / "said", self.module, *self.arguments(common, folder)).end_within(600.0)
        if ended.status != 0:
            return f"{ended.status}: {ended.stderr[-3000:]}"
        found = self.outcome(folder / "store")
        if wrong := sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)):
            return f"differs in {', '.join(wrong)}: {ended.stderr[-3000:]}"
        shutil.rmtree(folder)
        return ""


def _deed(name: str, stocked: bool = True) -> Trial:
    def before(common: Path, folder: Path) -> None:
        if stocked:
            do(["stock", f"{folder}/store"])

    def arguments(common: Path, folder: Path) -> list[object]:
        return [name, folder / "store"]

    return Trial(before, "tests.power_cuts.deeds", arguments, _contents)


def _contents(store: Path) -> Mapping[str, Any]:
    """The contents of a store of synthetic artifacts, without the times of moves."""
    found = {
        key: re.sub(rb'"(checksum|created)": "[^"]+"', b"", value)
        for key, value in contents(Store(str(store))).items()
        if not key.startswith(("models/", f"{HOLDS}/"))
    }
    champions = {f"move {n}": (m.action, m.run) for n, m in enumerate(moves(Store(str(store)), "model"))}
    return {**found, **champions}


def _job(values: Callable[[Path, Path], dict[str, Any]]) -> Trial:
    def arguments(common: Path, folder: Path) -> list[object]:
        return [write_config(folder / "job.yaml", {**values(common, folder), "run": "one"})]

    return Trial(lambda common, folder: None, "trainer.__main__", arguments, _run)


def _run(store: Path) -> Mapping[str, Any]:
    """The contents that do not depend on the store's path and time."""
    found = published(store, str(store))
    configs = {
        name: re.sub(r"/[^\"]*/store", "STORE", text) for name, text in found.items() if name.endswith("config.json")
    }
    return {**found, **configs, "curve": curve(store), "evaluations": held_out_losses(store)}


def _pretraining(common: Path, folder: Path) -> dict[str, Any]:
    raw = common / "raw"
    return small_values(
        raw if raw.exists() else write_corpora(raw), folder / "store", training__save_every=2,
        training__evaluate_every=3, training__keep_last=1,
    )  # fmt: skip


def _tuning(common: Path, folder: Path) -> dict[str, Any]:
    pairs, model = common / "pairs", common / "model"
    if not pairs.exists():
        write_pairs(pairs)
        chat_model(model)
    return finetune_values(pairs, folder / "store", model, training__save_every=20, training__keep_last=1)


def _preference(common: Path, folder: Path) -> dict[str, Any]:
    pairs, model = common / "preferences", common / "model"
    if not pairs.exists():
        write_preferences(pairs)
        chat_model(model)
    return preference_values(pairs, folder / "store", model, training__save_every=2)


def _curation(common: Path, folder: Path) -> list[object]:
    raw = common / "raw"
    if not raw.exists():
        texts = [" ".join(prose(seed, 80)) for seed in range(12)]
        write_documents(raw / "one" / "a.jsonl", [*texts[:9], texts[3]])
        write_documents(raw / "two" / "b.jsonl", [*texts[9:], texts[7], "few words", f"{texts[5]} otherwise"])
    curation = {"near": {}, "filters": [{"kind": "length", "least_bytes": 50}]}
    job = curated_job(folder / "store", {name: f"{raw}/{name}/*.jsonl" for name in ("one", "two")}, curation)
    return [write_config(folder / "job.yaml", job.model_dump(mode="json", exclude_unset=True))]


def _decisions(store: Path) -> Mapping[str, Any]:
    return {
        name: digest
        for name, digest in lasting_digests(store).items()
        if name.startswith("decisions/") and name.endswith((".npz", "pieces.json"))
    }


TRIALS: Mapping[str, Trial] = {
    "publish": _deed("publish", stocked=False),
    "promote": _deed("promote_third"),
    "roll back": _deed("roll_back_second"),
    "garbage": _deed("collect"),
    "old runs": _deed("collect_runs"),
    "curation": Trial(lambda common, folder: None, "tests.trainer.curate_once", _curation, _decisions),
    "pretraining": _job(_pretraining),
    "tuning": _job(_tuning),
    "preferences": _job(_preference),
}

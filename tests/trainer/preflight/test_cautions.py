"""Settings that are unusual are told before work starts, each with what is usual."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import small_job
from tests.trainer.labelled_pairs import finetune_job
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneTrainingConfig
from trainer.config.training import TrainingConfig
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.kinds.pretraining.preflight import preflight
from trainer.pipelines import any_kind
from trainer.preflight.resources import cautions


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"learning_rate": 100.0},
            "training.learning_rate is 100, which is high: .* with adamw, 1e-05 to 0.01 is usual",
        ),
        ({"learning_rate": 1e-9}, "training.learning_rate is 1e-09, which is low: .* with adamw"),
        ({"optimizer": "sgd", "learning_rate": 0.5}, None),
        ({"optimizer": "muon", "muon": {"learning_rate": 5.0}}, "training.muon.learning_rate is 5, which is high"),
        ({"optimizer": "muon", "muon": {"learning_rate": 0.02}}, None),
        ({"sharding": "fsdp"}, "fsdp with one process: nothing is sharded"),
        ({"learning_rate": 3e-3}, None),
    ],
)
def test_settings_of_pretraining(changes: dict[str, Any], said: str | None) -> None:
    found = list(cautions(TrainingConfig(**{"max_steps": 1, "device": "cpu", **changes}), 1))
    assert len(found) == (said is not None), found
    if said is not None:
        assert re.search(said, found[0])


@pytest.mark.parametrize(("rate", "told"), [(5.0, True), (0.1, True), (1e-3, False), (5e-5, False)])
def test_rates_of_tuning(rate: float, told: bool) -> None:
    found = list(cautions(FinetuneTrainingConfig(epochs=1, learning_rate=rate), 1))
    assert [f"training.learning_rate is {rate:g}" in each for each in found] == [True] * told


@pytest.mark.parametrize("has", [True, False])
def test_bf16_on_a_processor_that_emulates_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    found = list(cautions(TrainingConfig(max_steps=1, precision="bf16", device="cpu"), 1))
    assert [each.startswith("training.precision is bf16, which this processor does not support") for each in found] == (
        [] if has else [True]
    )


def test_the_preflights_tell_them(
    raw: Path, pairs: Path, pretrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    preflight(small_job(raw, tmp_path / "store", training__learning_rate=100.0), silent())
    labelled_preflight(finetune_job(pairs, tmp_path / "other", pretrained, training__learning_rate=5.0), silent())
    assert "training.learning_rate is 100, which is high" in caplog.text
    assert "training.learning_rate is 5, which is high" in caplog.text


def test_files_that_two_corpora_hold_are_told(raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = small_job(raw, tmp_path / "store")
    assert not preflight(job, silent()).warnings
    one, other = job.data.corpora
    both = one.model_copy(update={"name": other.name})
    shared = job.model_copy(update={"data": job.data.model_copy(update={"corpora": [one, both]})})
    (told,) = preflight(shared, silent()).warnings
    assert re.fullmatch(rf"\d+ files of corpus {one.name} \(.*\) are in {other.name} too and count in both", told)
    any_kind.preflight(shared, silent())  # as in a job that is not a dry run
    assert told in caplog.messages

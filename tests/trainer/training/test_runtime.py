"""What a process knows about itself among its ranks."""

import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.processes import start_warm
from tests.support import cpu_runtime, small_values, write_config
from tests.trainer.test_refusals import message_of
from trainer.common.errors import ConfigError, DeviceError
from trainer.training.runtime import (
    Runtime,
    check_devices,
    choose_algorithms,
    explained_algorithms,
    seed_everything,
    start_runtime,
)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_what_is_drawn_in_a_step_is_decided_by_seed_attempt_and_rank() -> None:
    found = {}
    for key in [(0, 5, 0), (0, 5, 1), (0, 6, 0), (1, 5, 0)]:
        seed_everything(*key)
        found[key] = draws()
        seed_everything(*key)
        assert draws() == found[key]
    assert len(set(found.values())) == 4


def test_a_single_rank_does_the_firsts_work_and_sums_to_itself(runtime: Runtime) -> None:
    assert (runtime.rank, runtime.ranks, runtime.device.type) == (0, 1, "cpu")
    assert runtime.on_first(lambda: "done") == "done"
    assert runtime.any(True)
    assert not runtime.any(False)
    assert runtime.sum(torch.tensor([1.5, 2.0])).tolist() == [1.5, 2.0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_is_that_of_the_job(precision: str) -> None:
    runtime = cpu_runtime(precision)
    with runtime.accelerator.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


@pytest.mark.parametrize(("capability", "refused"), [(7, True), (8, False)])
def test_a_gpu_that_only_emulates_bf16_is_refused_it(
    capability: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=capability))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    with pytest.raises(DeviceError, match="only emulates; use fp16 or fp32") if refused else nullcontext():
        check_devices("bf16", None)
    check_devices("fp16", None)


BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}


def test_a_launcher_with_another_precision_than_the_job_chooses_is_refused(
    raw: Path, stocked: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked, training__precision="fp32"))
    message = message_of(start_warm(tmp_path / "said", "trainer.__main__", config, env=BF16).wait())
    assert message.startswith("ConfigError: accelerate's configuration has mixed precision 'bf16'")
    assert "the job's precision is 'fp32'; make them the same" in message


def test_a_launchers_precision_is_taken_where_the_job_chooses_none(raw: Path, stocked: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked, run="half"))
    ended = start_warm(tmp_path / "said", "trainer.__main__", config, env=BF16).wait()
    assert ended.status == 0, ended
    settings = json.loads((stocked / "runs" / "half" / "config.json").read_text())
    assert settings["job"]["training"]["precision"] == "bf16"


def test_a_job_on_the_gpu_is_refused_without_one_and_by_a_launcher_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="the job's device is gpu, but this machine has no GPU"):
        start_runtime("fp32", "gpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ConfigError, match=r"configuration has use_cpu, but the job's device is 'gpu'"):
        start_runtime("fp32", "gpu")


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [("DYNAMO_BACKEND", "INDUCTOR", "training.compile"), ("GRADIENT_ACCUMULATION_STEPS", "2", "training.micro_batch")],
)
def test_what_a_launcher_would_change_unnoticed_is_refused_with_the_jobs_setting(
    name: str, value: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(ConfigError, match=rf"accelerate's configuration sets .*; set {instead} instead"):
        start_runtime("fp32")


def test_what_cannot_be_deterministic_is_told_with_the_setting() -> None:
    choose_algorithms(True)
    try:
        with (
            pytest.raises(ConfigError, match=r"training.deterministic is true, but the model uses .*put_"),
            explained_algorithms(True),
        ):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    finally:
        choose_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()

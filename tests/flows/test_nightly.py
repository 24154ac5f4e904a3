"""A night's figures are medians, are recorded and drawn, and fail the night if they are worse than earlier ones."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

import benchmarks.nightly
from benchmarks.nightly import EARLIER, SlowNight, judge, nightly
from tests import ROOT
from tests.support import small_values, write_config

USUAL = {"tokens_per_second": 1000.0, "against_trainer": 1.4, "start_seconds": 12.0, "loss": 5.0}


def test_a_night_is_judged_by_the_median_of_those_before_it() -> None:
    before = [{**USUAL, "tokens_per_second": rate} for rate in (1000.0, 90.0, 1010.0, 990.0, 5000.0)]
    near = {"tokens_per_second": 860.0, "against_trainer": 1.27, "start_seconds": 13.7, "loss": 5.09}
    beyond = {"tokens_per_second": 840.0, "against_trainer": 1.25, "start_seconds": 13.9, "loss": 5.11}
    assert judge(near, before) == []
    assert judge(beyond, before) == [
        "Quickstart, tokens a second: 840, at least 850 was expected (the median of 5 nights is 1,000)",
        "Training speed relative to Trainer: 1.25, at least 1.26 was expected (the median of 5 nights is 1.4)",
        "Processor seconds of a run to its first step: 13.9, at most 13.8 was expected (the median of 5 nights is 12)",
        "Quickstart, held-out loss: 5.11, at most 5.1 was expected (the median of 5 nights is 5)",
    ]


def test_a_first_night_and_one_after_a_lasting_change_are_no_worse() -> None:
    slow = {**USUAL, "tokens_per_second": 500.0}
    assert judge(slow, []) == []
    assert judge(slow, [USUAL] * 9) != []
    assert judge(slow, [*[USUAL] * 9, *[slow] * EARLIER]) == []


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_night_is_run_written_down_drawn_and_failed(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarks.nightly, "STARTS", 1)
    history = tmp_path / "nights" / "nights.jsonl"
    history.parent.mkdir()
    before = {"when": "2026-01-01T03:30+00:00", **USUAL, "tokens_per_second": 1e9, "against_trainer": 1e-3}
    before |= {"start_seconds": 1e3, "loss": 9.0}
    history.write_text(json.dumps(before) + "\n")
    config = write_config(tmp_path / "job.yaml", small_values(raw, tmp_path / "unused"))
    with pytest.raises(SlowNight, match=r"^Quickstart, tokens a second: .*, at least 8.5e\+08 was expected [^;]*$"):
        nightly("nights", str(config), 2)
    first, night = map(json.loads, history.read_text().splitlines())
    assert first == before
    assert night.keys() == before.keys() and all(night[name] > 0 for name in USUAL)
    ET.parse(tmp_path / "nights" / "nights.svg")
    with get_client(sync_client=True) as client:
        (shown,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["nights"])))
    assert str(shown.data).startswith("data:image/svg+xml;base64,")
    assert not (tmp_path / "unused").exists()


def test_the_deployment_names_the_flow() -> None:
    (deployed,) = yaml.safe_load((ROOT / "deployments" / "nightly.yaml").read_text())["deployments"]
    module, _, name = deployed["entrypoint"].rpartition(".")
    assert (module, getattr(benchmarks.nightly, name)) == (nightly.fn.__module__, nightly)
    assert deployed["flow_name"] == nightly.name


@pytest.mark.parametrize("name", ["prefect.yaml", "containers.yaml", "nightly.yaml"])
def test_runs_that_a_worker_missed_start_one_after_another(name: str) -> None:
    described = yaml.safe_load((ROOT / "deployments" / name).read_text())["deployments"]
    assert all(each.get("concurrency_limit") == 1 for each in described if each.get("schedules"))

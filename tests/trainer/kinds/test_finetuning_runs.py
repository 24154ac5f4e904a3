"""Fine-tuning as whole runs: with numbers for labels, and with models of the hub."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_squared_error

from tests.hub import serve_model
from tests.processes import finish, start_module, start_warm
from tests.support import read_rows, write_config, write_rows
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.test_refusals import message_of


@pytest.mark.deep
@pytest.mark.slow
def test_numbers_are_learnt_and_measured_as_scipy_does(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = read_rows(pairs / f"{split}.jsonl")
        scored = [{**row, "label": len(row["summary"]) / 40} for row in rows]
        write_rows(tmp_path / f"{split}.jsonl", scored)
    changes: dict[str, Any] = {
        f"data__{split}": [str(tmp_path / f"{split}.jsonl")] for split in ("train", "validation")
    }
    changes |= {"data__task": "regression", "data__classes": None, "data__text_columns": ["summary"], "run": "numbers"}
    changes |= {"evaluation__metrics": ["glue/stsb", "mse"], "evaluation__best_by": "spearmanr", "training__epochs": 4}
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, tmp_path / "store", pretrained, **changes))
    finish(tmp_path / "said", config)
    run = tmp_path / "store" / "runs" / "numbers"
    labels = [row["label"] for row in map(json.loads, (tmp_path / "validation.jsonl").read_text().splitlines())]
    lines = read_rows(run / "predictions" / "validation.jsonl")
    predicted = [line["prediction"] for line in lines]
    scores = json.loads((run / "eval.json").read_text())["groups"]["validation"]["figures"]
    assert scores["pearson"] == pytest.approx(pearsonr(labels, predicted)[0], abs=1e-6)
    assert scores["spearmanr"] == pytest.approx(spearmanr(labels, predicted)[0], abs=1e-6)
    error = mean_squared_error(labels, predicted)
    assert (scores["mse"], scores["loss"]) == (pytest.approx(error, rel=1e-5), pytest.approx(error, rel=1e-5))
    assert scores["pearson"] > 0.5, "the length of a text is easy to learn"
    assert "confusion" not in (run / "report.html").read_text().lower()


@pytest.mark.long
@pytest.mark.slow
def test_a_model_of_the_hub_is_fetched_and_its_contents_make_the_run(
    pairs: Path, pretrained: Path, tmp_path: Path
) -> None:
    values = finetune_values(pairs, tmp_path / "store", "someone/small", training__epochs=1)
    config = write_config(tmp_path / "job.yaml", values)
    env = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    with serve_model(pretrained, "someone/small", "c" * 40) as address:
        ended = start_module(tmp_path / "said", "trainer", config, env={**env, "HF_ENDPOINT": address}).wait()
        assert ended.status == 0, ended
        folder = config.with_name("folder.yaml")
        write_config(folder, finetune_values(pairs, tmp_path / "store", pretrained, training__epochs=1))
        again = start_warm(tmp_path / "again", "trainer.__main__", folder).wait()
        assert again.status == 0 and len(list((tmp_path / "store" / "runs").iterdir())) == 1, (
            "the same files, the same run"
        )
    (run,) = (tmp_path / "store" / "runs").iterdir()
    start = json.loads((run / "lineage.json").read_text())["pretrained"]
    assert (start["name"], start["origin"]) == ("someone/small", "hub")
    assert set(start["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}
    gone = finetune_values(pairs, tmp_path / "store", "someone/other")
    write_config(config, gone)
    ended = start_module(tmp_path / "gone", "trainer", config, env={**env, "HF_ENDPOINT": address}).wait()
    message = message_of(ended)
    assert (
        "no checkpoint 'someone/other'" in message and "hub does not provide it: the hub cannot be reached" in message
    )

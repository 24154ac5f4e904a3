"""Fine-tuning as whole runs: killed with everything on, on several ranks, with numbers for labels, with models of the
hub.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_squared_error
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.depth import once
from tests.hub import serve_model
from tests.processes import Ended, Running, start_module, start_ranks, start_warm
from tests.support import final_bytes, records, steps_recorded, write_config
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.test_refusals import message_of

OFTEN = {"training__evaluate_every": 5, "training__save_every": 3}


def run_to_end(said: Path, config: Path, ranks: int) -> list[Ended]:
    return [each.wait() for each in start(said, config, ranks)]


def start(said: Path, config: Path, ranks: int) -> list[Running]:
    module = "trainer.__main__"
    return start_ranks(said, ranks, module, config) if ranks > 1 else [start_warm(said, module, config)]


def small_model(family: str, pretrained: Path, folder: Path) -> Path:
    """An untrained model of another family, with the tokenizer of a pretrained one."""
    folder.mkdir()
    for path in pretrained.iterdir():
        if path.name.startswith(("tokenizer", "special")):
            (folder / path.name).write_bytes(path.read_bytes())
    vocab_size = json.loads((pretrained / "config.json").read_text())["vocab_size"]
    sizes = {"xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}}[family]
    config = AutoConfig.for_model(family, vocab_size=vocab_size, **sizes)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "family", "changes"),
    once(
        (1, None, {"training__early_stopping": 3, "training__final": "best", "training__learning_rate": 5e-2}),
        (2, None, {"training__early_stopping": 4, "training__optimizer": "adafactor"}),
        (1, None, {"training__optimizer": "sgd", "training__beta1": 0.0}),
        (2, "xlnet", {}),
    ),
    ids=[
        "best and early stopping",
        "two ranks",
        "an optimizer without state",
        "parameters that the loss does not reach",
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(
    pairs: Path, pretrained: Path, tmp_path: Path, ranks: int, family: str | None, changes: dict[str, Any]
) -> None:
    model = small_model(family, pretrained, tmp_path / "model") if family else pretrained
    stores = {name: tmp_path / name for name in ("clean", "killed")}
    configs = {
        name: write_config(tmp_path / f"{name}.yaml", finetune_values(pairs, store, model, **OFTEN, **changes))
        for name, store in stores.items()
    }
    assert {ended.status for ended in run_to_end(tmp_path / "said-clean", configs["clean"], ranks)} == {0}
    first, *others = start(tmp_path / "said-1", configs["killed"], ranks)
    assert first.send_when(signal.SIGKILL, lambda: steps_recorded(stores["killed"]) >= 8).status == -signal.SIGKILL
    for other in others:
        other.send(signal.SIGKILL)
        other.wait()
    ended = run_to_end(tmp_path / "said-2", configs["killed"], ranks)
    assert {each.status for each in ended} == {0}, ended
    assert "continuing from" in ended[0].stderr
    assert final_bytes(stores["killed"]) == final_bytes(stores["clean"])
    found, expected = ([(r["step"], r["loss"]) for r in records(store, "evaluation")] for store in stores.values())
    assert found == expected


@pytest.mark.deep
@pytest.mark.slow
def test_numbers_are_learnt_and_measured_as_scipy_does(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = [json.loads(line) for line in (pairs / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        scored = [{**row, "label": len(row["summary"]) / 40} for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored), encoding="utf-8")
    changes: dict[str, Any] = {
        f"data__{split}": [str(tmp_path / f"{split}.jsonl")] for split in ("train", "validation")
    }
    changes |= {"data__task": "regression", "data__classes": None, "data__text_columns": ["summary"], "run": "numbers"}
    changes |= {"evaluation__metrics": ["glue/stsb", "mse"], "evaluation__best_by": "spearmanr", "training__epochs": 4}
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, tmp_path / "store", pretrained, **changes))
    (ended,) = run_to_end(tmp_path / "said", config, 1)
    assert ended.status == 0, ended
    run = tmp_path / "store" / "runs" / "numbers"
    labels = [row["label"] for row in map(json.loads, (tmp_path / "validation.jsonl").read_text().splitlines())]
    lines = [json.loads(line) for line in (run / "predictions" / "validation.jsonl").read_text().splitlines()]
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
    assert "no checkpoint 'someone/other'" in message_of(ended) and "cannot be fetched" in message_of(ended)

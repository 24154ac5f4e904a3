"""Predicting new texts with a finished model, against transformers; found again, refused, stopped and continued."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    PreTrainedConfig,
    RobertaConfig,
)

from tests.depth import once
from tests.processes import being_written, start_ranks, start_warm
from tests.support import failing_first, read_rows, write_config
from tests.trainer.labelled_data import (
    END,
    as_csv,
    as_jsonl,
    as_parquet,
    bert_folder,
    flat_records,
    model_folder,
    pair_rows,
    written,
)
from tests.trainer.raw_files import docstrings
from tests.trainer.small_jobs import Finished
from tests.trainer.small_tokenizers import bpe_that_ends_texts_itself
from tests.trainer.test_refusals import message_of
from trainer.common import transient
from trainer.common.errors import ArtifactError, ConfigError, CorpusError, PipelineError, RecordError, StorageError
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.labelled import PredictJob
from trainer.kinds.labelled.predict import look_at_texts, predict_texts
from trainer.kinds.labelled.predictions import KIND, describe, identify_predictions
from trainer.records.results import PredictedTexts
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store
from trainer.training.runtime import Runtime


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a head for three classes, as someone else may have left it."""
    folder = bert_folder(tmp_path_factory.mktemp("models") / "classifier")
    return with_head(
        folder, num_labels=3, id2label={0: "no", 1: "yes", 2: "maybe"}, label2id={"no": 0, "yes": 1, "maybe": 2}
    )


def with_head(folder: Path, **settings: Any) -> Path:
    """Give a model's folder weights, such that texts are not all alike to it."""
    torch.manual_seed(7)
    model = BertForSequenceClassification(AutoConfig.from_pretrained(folder, **settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokenize = AutoTokenizer.from_pretrained(folder)
    inputs = tokenize(docstrings(50), truncation=True, max_length=64, padding=True, return_tensors="pt")
    with torch.no_grad():
        model.classifier.bias -= model(**inputs).logits.mean(dim=0)
    model.save_pretrained(folder)
    return folder


def job_of(store: Path, model: Path | str, path: str | list[str], **changes: Any) -> PredictJob:
    data = {"source": "jsonl", "paths": path if isinstance(path, list) else [path], **changes.pop("data", {})}
    return validate_job(PredictJob, {"store": str(store), "model": str(model), "data": data, **changes}, "test")


def predicted(job: PredictJob) -> list[dict[str, Any]]:
    return lines_of(job, predict_texts(job, silent()))


def lines_of(job: PredictJob, made: PredictedTexts) -> list[dict[str, Any]]:
    return read_rows(Path(job.store, made.key, "predictions.jsonl"))


def logits_of(model: Path, rows: list[dict[str, Any]], columns: list[str], length: int) -> torch.Tensor:
    """What transformers itself says of each text alone, of shape [texts, C]."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    classifier = AutoModelForSequenceClassification.from_pretrained(model).eval()
    found = []
    with torch.no_grad():
        for row in rows:
            texts = [row[column] for column in columns]
            inputs = tokenizer(
                *texts, truncation=True, max_length=length, return_tensors="pt", split_special_tokens=True
            )
            found.append(classifier(**inputs).logits[0])
    return torch.stack(found)


def assert_same(lines: list[dict[str, Any]], logits: torch.Tensor, names: dict[int, str]) -> None:
    for line, chances in zip(lines, logits.double().softmax(-1).tolist(), strict=True):
        assert line["probabilities"] == pytest.approx({names[n]: p for n, p in enumerate(chances)}, abs=1e-5)
        assert line["prediction"] == names[chances.index(max(chances))]


@pytest.mark.parametrize("columns", [["a"], ["a", "b"]], ids=["texts", "pairs"])
def test_predictions_are_those_of_transformers_in_the_order_of_the_file(
    classifier: Path, tmp_path: Path, runtime: Runtime, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.kinds.labelled.predict.BLOCK_TEXTS", 30)
    rows = pair_rows(docstrings(100))
    path = written(tmp_path / "new.jsonl", as_jsonl([{key: row[key] for key in ("id", "a", "b")} for row in rows]))
    job = job_of(tmp_path / "store", classifier, path, batch=7, data={"text_columns": columns, "id_column": "id"})
    made = predict_texts(job, silent())
    lines = lines_of(job, made)
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert_same(lines, logits_of(classifier, rows, columns, 64), {0: "no", 1: "yes", 2: "maybe"})
    assert len({line["probabilities"]["yes"] for line in lines}) > 50, "texts are not all alike to it"
    told = {name: sum(line["prediction"] == name for line in lines) for name in ("no", "yes", "maybe")}
    assert (made.texts, made.predicted, made.truncated > 0) == (len(rows), told, True)


def test_a_run_predicts_by_its_name_what_transformers_predicts_with_its_final_model(
    tuned: Finished, pairs: Path, tmp_path: Path, runtime: Runtime
) -> None:
    store = Path(shutil.copytree(tuned.store, tmp_path / "store"))
    shutil.rmtree(store / "encoded")  # all that is needed lies beside the model
    rows = read_rows(pairs / "validation.jsonl")
    job = job_of(store, "pairs", str(pairs / "validation.jsonl"), name="new", data={"id_column": "id"})
    made = predict_texts(job, silent())
    final = store / tuned.run / "final"
    lines = lines_of(job, made)
    assert_same(lines, logits_of(final, rows, ["summary", "code"], 32), {0: "other", 1: "match"})
    assert lines == read_rows(store / tuned.run / "predictions/validation.jsonl")
    manifest = read_manifest(Store(str(store)), made.key, KIND)
    assert manifest is not None
    told = manifest.details
    assert (told["model"]["key"], told["text_columns"]) == (f"{tuned.run}/final", ["summary", "code"])
    assert told["model"]["files"].items() >= {"model.safetensors": digest(final / "model.safetensors")}.items()
    assert told["files"] == [
        {"path": str(pairs / "validation.jsonl"), "sha256": digest(pairs / "validation.jsonl"), "texts": len(rows)}
    ]
    best = job_of(
        store, f"{tuned.run}/checkpoint-last", str(pairs / "validation.jsonl"), name="new", data={"id_column": "id"}
    )
    assert len(predicted(best)) == len(rows), "any checkpoint will do"


def digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_numbers_are_predicted_as_transformers_does(tmp_path: Path, runtime: Runtime) -> None:
    model = with_head(bert_folder(tmp_path / "model"), num_labels=1, problem_type="regression")
    rows = flat_records(40)
    job = job_of(
        tmp_path / "store", model, written(tmp_path / "new.jsonl", as_jsonl(rows)), data={"text_columns": ["a"]}
    )
    made = predict_texts(job, silent())
    lines = lines_of(job, made)
    numbers = logits_of(model, rows, ["a"], 64)[:, 0].tolist()
    assert [line["prediction"] for line in lines] == pytest.approx(numbers, abs=1e-5)
    assert [line["id"] for line in lines] == [str(number) for number in range(40)] and set(lines[0]) == {
        "id",
        "prediction",
    }
    assert made.predicted == pytest.approx(
        {"mean": sum(numbers) / 40, "min": min(numbers), "max": max(numbers)}, abs=1e-5
    )


def test_files_of_every_kind_are_read_and_numbered_on(classifier: Path, tmp_path: Path, runtime: Runtime) -> None:
    rows = flat_records(30)
    kinds = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}
    found = []
    for kind, write in kinds.items():
        paths = [written(tmp_path / kind / f"{n}.{kind}", write(rows[10 * n : 10 * n + 10])) for n in range(3)]
        job = job_of(
            tmp_path / "store", classifier, f"{tmp_path}/{kind}/*", data={"source": kind, "text_columns": ["a", "b"]}
        )
        assert len(paths) == 3
        found.append(predicted(job))
    assert found[0] == found[1] == found[2]
    assert [line["id"] for line in found[0]] == [str(number) for number in range(30)]


def test_what_was_predicted_is_reused_until_something_changes_or_is_damaged(
    classifier: Path, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(20)))
    job = job_of(tmp_path / "store", classifier, path, data={"text_columns": ["a"]})
    made = predict_texts(job, silent())
    again = predict_texts(job.model_copy(update={"batch": 3}), silent())
    assert (made.reused, again) == (False, made.model_copy(update={"reused": True}))
    file = tmp_path / "store" / made.key / "predictions.jsonl"
    before = file.read_bytes()
    file.write_bytes(before.replace(b'"no"', b'"na"', 1))
    assert not predict_texts(job, silent()).reused and "rebuilding it" in caplog.text
    assert file.read_bytes() == before
    written(Path(path), as_jsonl(flat_records(21)))
    other = predict_texts(job, silent())
    assert other.key != made.key and file.read_bytes() == before
    model = Path(shutil.copytree(classifier, tmp_path / "other"))
    with_head(model, num_labels=2)
    assert predict_texts(job.model_copy(update={"model": str(model)}), silent()).key not in (made.key, other.key)


def test_predictions_that_were_published_at_the_second_attempt_are_found_intact(
    classifier: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [StorageError("the store is away", transient=True)]
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Store, "put_folder", failing_first(failures, Store.put_folder))
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(20)))
    job = job_of(tmp_path / "store", classifier, path, data={"text_columns": ["a"]})
    made = predict_texts(job, silent())
    assert not failures and predict_texts(job, silent()) == made.model_copy(update={"reused": True})


@pytest.mark.parametrize(("family", "depends"), [("fnet", True), ("gpt2", False)])
def test_the_size_of_batches_names_predictions_that_depend_on_it(
    family: str, depends: bool, classifier: Path, tmp_path: Path
) -> None:
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(20)))
    model = Path(shutil.copytree(classifier, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": family}))
    job = job_of(tmp_path / "store", model, path, data={"text_columns": ["a"]})
    one, other = (
        identify_predictions(Store(job.store), job.model_copy(update={"batch": size})).recipe for size in (1, 8)
    )
    assert (one != other) == depends


def test_memory_does_not_hold_more_than_a_block_of_texts(
    classifier: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.kinds.labelled import predict

    sizes = []
    encode_block = predict.encode_block
    monkeypatch.setattr("trainer.kinds.labelled.predict.BLOCK_TEXTS", 8)
    monkeypatch.setattr(
        predict,
        "encode_block",
        lambda block, *others: sizes.append(len(block)) or encode_block(block, *others),
    )
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(50)))
    made = predict_texts(job_of(tmp_path / "store", classifier, path, data={"text_columns": ["a"]}), silent())
    assert (made.texts, sizes) == (50, [8] * 6 + [2])


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"model": "nobody"}, ArtifactError, "no checkpoint 'nobody'"),
        (
            {"data": {"text_columns": None}},
            ConfigError,
            "does not belong to a run in this store: set data.text_columns",
        ),
        ({"data": {"text_columns": ["c"]}}, CorpusError, r"new.jsonl has no column 'c'; it has id, a, b, label"),
        ({"data": {"id_column": "name"}}, CorpusError, r"new.jsonl has no column 'name'"),
        ({"data": {"paths": ["none/*.jsonl"]}}, CorpusError, "no file"),
        ({"data": {"max_length": 65}}, ConfigError, "data.max_length is 65, but the model .* has 64 positions"),
        (
            {"precision": "fp16", "device": "cpu"},
            PipelineError,
            "^the job's precision is fp16, but this machine has no GPU",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_one_message(
    classifier: Path, tmp_path: Path, runtime: Runtime, change: dict[str, Any], kind: type[PipelineError], says: str
) -> None:
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(5)))
    data = {"text_columns": ["a"], **change.pop("data", {})}
    values = {"store": tmp_path / "store", "model": classifier, "path": path, "data": data, **change}
    with pytest.raises(kind, match=says):
        predict_texts(job_of(**values), silent())
    assert not (tmp_path / "store" / "predictions").exists()


def test_a_file_without_a_header_is_told_from_one_without_the_column(
    classifier: Path, tmp_path: Path, runtime: Runtime
) -> None:
    path = written(tmp_path / "new.csv", "One text\nAnother\n")
    job = job_of(tmp_path / "store", classifier, path, data={"source": "csv", "text_columns": ["a"]})
    with pytest.raises(
        CorpusError, match="no column 'a'; it has One text; if its first line is not a header, list its columns in"
    ):
        predict_texts(job, silent())


def test_a_bad_record_is_named_or_passed_over_and_counted(classifier: Path, tmp_path: Path, runtime: Runtime) -> None:
    rows: list[dict[str, Any]] = [*flat_records(5), {"id": "x", "a": None}, {"id": "y", "a": " "}, *flat_records(3)]
    path = written(tmp_path / "new.jsonl", as_jsonl(rows))
    job = job_of(tmp_path / "store", classifier, path, data={"text_columns": ["a"]})
    with pytest.raises(RecordError, match=r"new.jsonl: line 6: column 'a' holds no text \(max_bad_records is 0"):
        predict_texts(job, silent())
    assert not (tmp_path / "store" / "predictions").exists()
    lenient = job.model_copy(update={"data": job.data.model_copy(update={"max_bad_records": 2})})
    made = predict_texts(lenient, silent())
    assert (made.texts, made.bad_records) == (8, 2)
    assert "new.jsonl: line 6: column 'a' holds no text" in made.skipped[0] and len(made.skipped) == 2
    assert [line["id"] for line in lines_of(lenient, made)] == [*"01234", "7", "8", "9"]
    with pytest.raises(RecordError, match="line 6"):
        predict_texts(job, silent())  # what was passed over is not reused by who may pass over nothing


@pytest.mark.parametrize("block", [1, 100])
def test_a_text_without_tokens_is_a_bad_record(
    tmp_path: Path, runtime: Runtime, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.kinds.labelled.predict.BLOCK_TEXTS", block)
    model = bert_folder(tmp_path / "model")
    BertForTokenClassification(AutoConfig.from_pretrained(model)).save_pretrained(model)
    words = [["a", "file"], ["\u200b"], ["the", "\u200b", "list"], ["\u0007"]]
    path = written(tmp_path / "new.jsonl", as_jsonl([{"a": each} for each in words]))
    job = job_of(tmp_path / "store", model, path, data={"text_columns": ["a"], "max_bad_records": 1})
    with pytest.raises(
        RecordError, match=r"line [24]: no word can have a label: .* \(more than the 1 that max_bad_rec"
    ):
        predict_texts(job, silent())
    lenient = job.model_copy(update={"data": job.data.model_copy(update={"max_bad_records": 2})})
    made = predict_texts(lenient, silent())
    assert (made.texts, made.bad_records, made.words, made.unseen_words) == (2, 2, 5, 1)
    assert "new.jsonl: line 2: no word can have a label" in made.skipped[0] and "line 4" in made.skipped[1]
    assert [line["id"] for line in lines_of(lenient, made)] == ["0", "2"]
    manifest = read_manifest(Store(job.store), made.key, KIND)
    assert manifest is not None and [each["texts"] for each in manifest.details["files"]] == [2]
    written(tmp_path / "new.jsonl", as_jsonl([{"a": each} for each in words[1::2]]))
    with pytest.raises(CorpusError, match="is empty: 2 records, 2 of them bad"):
        predict_texts(lenient, silent())


def test_a_row_with_the_id_of_another_is_bad(classifier: Path, tmp_path: Path, runtime: Runtime) -> None:
    texts = [{"id": name, "a": f"text {number}"} for number, name in enumerate(["x", 7, "y", "7", "z"])]
    paths = [written(tmp_path / f"{name}.jsonl", as_jsonl(rows)) for name, rows in (("a", texts[:3]), ("b", texts[3:]))]
    job = job_of(tmp_path / "store", classifier, paths, data={"text_columns": ["a"], "id_column": "id"})
    said = r"b.jsonl: line 1: column 'id': '7' is also the id of .*a.jsonl: line 2; ids must differ \(max_bad_records"
    with pytest.raises(RecordError, match=said):
        predict_texts(job, silent())
    with pytest.raises(RecordError, match=said):
        look_at_texts(job, identify_predictions(Store(job.store), job), silent())
    lenient = job.model_copy(update={"data": job.data.model_copy(update={"max_bad_records": 1})})
    made = predict_texts(lenient, silent())
    assert (made.texts, made.bad_records) == (4, 1)
    assert [line["id"] for line in lines_of(lenient, made)] == ["x", "7", "y", "z"]


PADDED = {"eos_token": END, "pad_token": "<pad>"}
"""Settings of a tokenizer with its own padding token; the model's configuration is not told of it."""


@pytest.mark.parametrize(
    ("kind", "tokens", "pad_id"),
    [
        (GPT2Config, {"eos_token": END}, None),
        (GPT2Config, PADDED, None),
        (GPT2Config, PADDED, 300),
        (GPT2Config, {"eos_token": "<pad>", "pad_token": END}, None),
        (RobertaConfig, PADDED, 7),
    ],
    ids=["end-token", "padding-token", "text-token", "padding-ends-texts", "positions"],
)
def test_a_model_reads_each_text_where_it_does_without_padding(
    tmp_path: Path, runtime: Runtime, kind: type[PreTrainedConfig], tokens: dict[str, str], pad_id: int | None
) -> None:
    tokenizer = bpe_that_ends_texts_itself()
    tokenizer.add_special_tokens(["<pad>"])
    size = tokenizer.get_vocab_size()
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 80}
    config = kind(vocab_size=size, num_labels=3, pad_token_id=pad_id, intermediate_size=16, **sizes)
    model = model_folder(tmp_path / "model", tokenizer, config, tokenizer_class="PreTrainedTokenizerFast", **tokens)
    torch.manual_seed(7)
    classifier = AutoModelForSequenceClassification.from_config(config)
    for parameter in classifier.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    classifier.save_pretrained(model)
    rows = [{"a": text} for text in docstrings(40)]
    path = written(tmp_path / "new.jsonl", as_jsonl(rows))
    job = job_of(tmp_path / "store", model, path, batch=8, data={"text_columns": ["a"], "max_length": 32})
    assert_same(predicted(job), logits_of(model, rows, ["a"], 32), dict(config.id2label))


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ({"problem_type": "regression"}, r"predicts 3 numbers for each text \(a, b, a\); expected .* one number"),
        ({}, "has several classes of one name in id2label of its config.json: 'a'; give each class its own name"),
    ],
    ids=["numbers", "one-name"],
)
def test_outputs_that_cannot_all_be_told_are_refused(
    tmp_path: Path, runtime: Runtime, outputs: dict[str, str], says: str
) -> None:
    model = with_head(bert_folder(tmp_path / "model"), num_labels=3, id2label={0: "a", 1: "b", 2: "a"}, **outputs)
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(5)))
    job = job_of(tmp_path / "store", model, path, data={"text_columns": ["a"]})
    with pytest.raises(ConfigError, match=says):
        look_at_texts(job, identify_predictions(Store(job.store), job), silent())
    with pytest.raises(ConfigError, match=says):
        predict_texts(job, silent())


@pytest.mark.deep
def test_a_model_without_a_trained_head_is_refused(
    tuned: Finished, finished: Finished, bert: Path, tmp_path: Path, runtime: Runtime
) -> None:
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(5)))
    base = Path(shutil.copytree(bert, tmp_path / "base"))
    BertForSequenceClassification(AutoConfig.from_pretrained(base)).bert.save_pretrained(base)
    with pytest.raises(
        ConfigError, match=r"is not a finished classifier: it lacks classifier.bias, classifier.weight; fine-tune"
    ):
        predict_texts(job_of(tmp_path / "store", base, path, data={"text_columns": ["a"]}), silent())
    store = Path(shutil.copytree(finished.store, tmp_path / "language"))
    with pytest.raises(ConfigError, match="is a language model, which predicts no classes; fine-tune it"):
        predict_texts(job_of(store, "tiny", path), silent())
    store = Path(shutil.copytree(tuned.store, tmp_path / "tuned"))
    with pytest.raises(
        ConfigError, match=r"trained on pairs of texts \(summary, code\), but data.text_columns lists a; list 2"
    ):
        predict_texts(job_of(store, "pairs", path, data={"text_columns": ["a"]}), silent())


def test_a_model_that_gives_no_number_is_refused(classifier: Path, tmp_path: Path, runtime: Runtime) -> None:
    model = Path(shutil.copytree(classifier, tmp_path / "model"))
    broken = BertForSequenceClassification.from_pretrained(model)
    torch.nn.init.constant_(broken.classifier.bias, float("nan"))
    broken.save_pretrained(model)
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(5)))
    with pytest.raises(ArtifactError, match="gives a number that is not finite for text '0', in fp32"):
        predict_texts(job_of(tmp_path / "store", model, path, data={"text_columns": ["a"]}), silent())
    assert not (tmp_path / "store" / "predictions").exists()


def config_of(tmp_path: Path, store: Path, classifier: Path, texts: int) -> Path:
    path = written(tmp_path / "new.jsonl", as_jsonl(flat_records(50) * (texts // 50)))
    data = {"source": "jsonl", "paths": [path], "text_columns": ["a", "b"]}
    return write_config(tmp_path / "job.yaml", {"store": str(store), "model": str(classifier), "data": data})


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("signum", once(signal.SIGKILL, signal.SIGTERM))
def test_what_is_stopped_leaves_nothing_half_made_and_is_made_whole_when_it_is_started_again(
    classifier: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    store = tmp_path / "store"
    config = config_of(tmp_path, store, classifier, 20_000)
    running = start_warm(tmp_path / "said", "trainer.predict", config)
    ended = running.send_when(signum, lambda: being_written(store, "*/predictions.jsonl"))
    assert ended.status == (75 if signum == signal.SIGTERM else -signal.SIGKILL), ended
    assert not (store / "predictions").exists()
    config = config_of(tmp_path, store, classifier, 500)
    ended = start_warm(tmp_path / "again", "trainer.predict", config).wait()
    assert ended.status == 0, ended
    assert "500 texts: no " in ended.stdout
    assert not list(store.glob(".staging/*"))


@pytest.mark.deep
@pytest.mark.slow
def test_two_ranks_write_what_one_writes(classifier: Path, tmp_path: Path) -> None:
    found = []
    for ranks in (1, 2):
        store = tmp_path / str(ranks)
        config = config_of(tmp_path, store, classifier, 100)
        said = tmp_path / f"said-{ranks}"
        ended = [rank.wait() for rank in start_ranks(said, ranks, "trainer.predict", config)]
        assert [each.status for each in ended] == [0] * ranks, ended
        (path,) = store.glob("predictions/*/predictions.jsonl")
        found.append(read_rows(path))
    for one, two in zip(*found, strict=True):
        assert (one["id"], one["prediction"]) == (two["id"], two["prediction"])
        assert one["probabilities"] == pytest.approx(two["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_the_command_refuses_with_one_message(classifier: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "store", classifier, 50)
    ended = start_warm(tmp_path / "said", "trainer.predict", config, "data.text_columns=[nothing]").wait()
    assert "has no column 'nothing'" in message_of(ended)


def test_counts_of_more_than_a_million_are_shown_in_full(empty_store: Store) -> None:
    made = PredictedTexts(
        key="predictions/new-0", fingerprint="", size=1, model="a", texts=1_234_569, bad_records=0, truncated=0,
        predicted={"no": 1_234_567.0, "yes": 2.0},
    )  # fmt: skip
    assert describe(empty_store, made).startswith("1,234,569 texts: no 1,234,567, yes 2\n")
    numbers = made.model_copy(update={"predicted": {"mean": 0.123456789, "min": -2.0}})
    assert describe(empty_store, numbers).startswith("1,234,569 texts: mean 0.123457, min -2\n")

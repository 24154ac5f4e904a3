"""Schemas: unknown keys, impossible values and contradictions are refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.config.corpora import CorpusConfig
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.labelled import MeasurementConfig
from trainer.config.schema import Schema
from trainer.config.training import TrainingConfig

CORPUS = {"name": "docs", "paths": ["docs/*.txt"]}
DATA = {"corpora": [CORPUS], "tokenizer": {"vocab_size": 500}}
JOB = {"store": "data", "data": DATA, "model": {"config": {"model_type": "gpt2"}}, "training": {"epochs": 1}}


def changed(values: Any, path: str, value: Any) -> Any:
    """A copy of nested values with one of them set."""
    first, _, rest = path.partition(".")
    if isinstance(values, list):
        return [changed(item, rest, value) if number == int(first) else item for number, item in enumerate(values)]
    return {**values, first: changed(values.get(first, {}), rest, value) if rest else value}


def refusal(schema: type[Schema], values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(values)
    return str(caught.value)


def test_a_job_is_read_back_from_its_own_json() -> None:
    job = PipelineJob.model_validate(JOB)
    assert PipelineJob.model_validate_json(job.model_dump_json()) == job
    assert job.preparation() == PrepareJob.model_validate({"store": "data", "data": DATA})


def test_a_job_cannot_be_changed_after_it_was_checked() -> None:
    job = PipelineJob.model_validate(JOB)
    with pytest.raises(ValidationError, match="frozen"):
        job.training.epochs = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (
            "data.tokenizer.path",
            "tokenizer.json",
            "give either vocab_size (train a tokenizer) or path (use an existing one)",
        ),
        ("data.tokenizer", {}, "give either vocab_size (train a tokenizer) or path (use an existing one)"),
        ("data.corpora", [CORPUS, CORPUS], "two corpora share the name 'docs'"),
        ("data.corpora", [], "at least 1 item"),
        ("data.corpora.0.name", "../up", "should match pattern"),
        ("data.validation_fraction", 1.0, "less than 1"),
        ("data.shards.num_shards", 100_000, "less than or equal to 99999"),
        ("data.shards.piece_bytes", 1023, "greater than or equal to 1024"),
        ("data.tokenizer.vocab_size", 256, "greater than or equal to 257"),
        ("model.pretrained", "gpt2", "give either config (a new model) or pretrained"),
        ("model", {}, "give either config (a new model) or pretrained"),
        ("training", {}, "give either epochs or max_steps"),
        ("training.stride", 257, "stride 257 is beyond context 256: tokens between windows would be lost"),
        ("training.micro_batch", 3, "micro_batch 3 does not divide global_batch 8"),
        ("training", {"max_steps": 5, "warmup_steps": 6}, "warmup_steps 6 is beyond max_steps 5"),
        (
            "training",
            {"max_steps": 5, "warmup_steps": 2, "schedule": "constant"},
            "warmup_steps 2 would have no effect; set schedule: constant_with_warmup",
        ),
        (
            "training",
            {"max_steps": 5, "optimizer": "adafactor", "beta1": 0.8},
            "beta1 requires optimizer adamw or muon: adafactor has none; remove it",
        ),
        ("training", {"max_steps": 5, "optimizer": "sgd", "epsilon": 1e-6}, "epsilon requires optimizer adamw"),
        (
            "data.corpora",
            [{"name": "a", "paths": ["*"], "text_field": "body"}],
            "text_field requires format csv or jsonl or parquet, not 'text'",
        ),
        (
            "data.curation",
            {"decontaminate": {"files": [{"paths": ["*"], "fields": ["question"]}]}},
            "fields requires format csv or jsonl or parquet, not 'lines'",
        ),
        (
            "data.tokenizer",
            {"vocab_size": 300, "eos_token": "<end>"},
            "eos_token requires path: a newly trained tokenizer ends documents with <|endoftext|>",
        ),
        (
            "data.tokenizer",
            {"path": "tokenizer.json", "sample_bytes": 10},
            "sample_bytes requires vocab_size: the tokenizer in path is not trained",
        ),
        (
            "data.curation",
            {"decontaminate": {"files": [{"paths": ["*"], "delimiter": ";"}]}},
            "delimiter requires format csv, not 'lines'",
        ),
        (
            "training",
            {"max_steps": 5, "packing": "best_fit", "stride": 16},
            "stride requires packing: stream: packed windows do not overlap",
        ),
        (
            "training",
            {"max_steps": 5, "objective": "masked", "packing": "best_fit"},
            "packing: best_fit requires objective: causal, not 'masked'",
        ),
        (
            "training",
            {"max_steps": 5, "objective": "masked", "document_mask": True},
            "document_mask requires objective: causal, not 'masked'",
        ),
        (
            "training",
            {"max_steps": 5, "objective": "masked", "sharding": "fsdp"},
            "objective: masked requires sharding: none",
        ),
        (
            "training",
            {"max_steps": 5, "objective": "masked", "masking": {"mask_share": 0.95}},
            "mask_share 0.95 plus random_share 0.1 is more than 1",
        ),
        ("training.masking", {}, "masking requires objective: masked, not 'causal'"),
        ("training.muon", {}, "muon requires optimizer: muon, not 'adamw'"),
        (
            "training",
            {"max_steps": 5, "optimizer": "muon", "sharding": "fsdp"},
            "sharding: fsdp requires optimizer adamw or sgd: muon orthogonalises",
        ),
        (
            "training",
            {"max_steps": 5, "optimizer": "adafactor", "sharding": "fsdp"},
            "sharding: fsdp requires optimizer adamw or sgd",
        ),
        ("training.cpu_offload", True, "cpu_offload requires sharding: fsdp"),
        ("training.sharding", "zero", "Input should be 'none' or 'fsdp'"),
        ("model.lora", {}, "lora requires pretrained"),
        ("model", {"pretrained": "x", "lora": {"rank": 0}}, "greater than or equal to 1"),
        ("model", {"pretrained": "x", "quantize": "nf4"}, "quantize requires lora"),
        ("model", {"pretrained": "x", "lora": {}, "quantize": "int2"}, "Input should be 'nf4' or 'int8'"),
    ],
)
def test_a_contradiction_or_an_impossible_value_is_refused(path: str, value: Any, problem: str) -> None:
    assert problem in refusal(PipelineJob, changed(JOB, path, value))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"training.evaluate_every": 10, "data.validation_fraction": 0},
            "training.evaluate_every needs data.validation_fraction above 0: no text is held out",
        ),
        (
            {"training.early_stopping": 2, "data.validation_fraction": 0},
            "training.early_stopping needs data.validation_fraction above 0: no text is held out",
        ),
        (
            {"training.final": "best", "data.validation_fraction": 0},
            "training.final: best needs data.validation_fraction above 0: no text is held out",
        ),
        (
            {"training.objective": "masked", "evaluation.prompts": ["a"]},
            "evaluation.prompts requires training.objective: causal",
        ),
        (
            {"model": {"pretrained": "x", "lora": {}}, "training.sharding": "fsdp"},
            "model.lora requires training.sharding: none",
        ),
    ],
)
def test_parts_of_a_job_that_do_not_go_together_are_refused(changes: dict[str, Any], problem: str) -> None:
    values = JOB
    for path, value in changes.items():
        values = changed(values, path, value)
    assert problem in refusal(PipelineJob, values)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"format": "jsonl", "quoting": False}, "quoting requires format csv, not 'jsonl'"),
        ({"separator": "%%\n"}, "separator is one line: remove its line end"),
        ({"separator": ""}, "at least 1 character"),
        ({"separator": "x", "format": "jsonl"}, "separator requires format 'text', not 'jsonl'"),
        ({"format": "csv", "delimiter": '"'}, "should match pattern"),
        ({"format": "csv", "delimiter": "\n"}, "should match pattern"),
        ({"format": "xml"}, "Input should be 'text', 'source', 'lines'"),
        ({"max_bad_records": -1}, "greater than or equal to 0"),
    ],
)
def test_a_corpus_that_cannot_be_read_so_is_refused(values: dict[str, Any], problem: str) -> None:
    assert problem in refusal(CorpusConfig, {**CORPUS, **values})


def test_a_list_that_would_stand_for_the_default_is_refused() -> None:
    assert "at least 1 item" in refusal(MeasurementConfig, {"metrics": []})
    assert "at least 1 item" in refusal(EvaluateJob, {"store": "store", "checkpoint": "run", "shards": []})


def test_every_field_of_every_schema_is_described() -> None:
    def undescribed(schema: type[Schema]) -> list[str]:
        own = [f"{schema.__name__}.{name}" for name, field in schema.model_fields.items() if not field.description]
        return own + [name for each in schema.__subclasses__() for name in undescribed(each)]

    assert undescribed(Schema) == []
    assert "description" in TrainingConfig.model_json_schema()["properties"]["context"]

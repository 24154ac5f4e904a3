"""Jobs from YAML files and key=value words: what is taken, what is refused, and how every field is explained."""

import math
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
import yaml
from pydantic import BaseModel

from tests import ROOT
from tests.support import small_values, write_config
from trainer.common.errors import ConfigError
from trainer.config.files import add_config, explain, load_job, override, parse_yaml, read_values
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.labelled import FinetuneJob
from trainer.config.schema import schemas_in
from trainer.kinds.kind import load_training_job


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", small_values(tmp_path, tmp_path / "store"))


def refused(config: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_job(PipelineJob, str(config), words)
    return str(caught.value)


def test_words_replace_what_the_file_says(config: Path) -> None:
    words = [
        "training.max_steps=9",
        "training.learning_rate=2.5e-4",
        "training.compile=true",
        "training.save_every=null",
    ]
    job = load_job(PipelineJob, str(config), [*words, "name=other"])
    assert (job.training.max_steps, job.training.learning_rate, job.name) == (9, 2.5e-4, "other")
    assert (job.training.compile, job.training.save_every) == (True, None)


def test_words_reach_into_lists_and_give_whole_values(config: Path) -> None:
    words = ["data.corpora.1.name=second", "data.corpora.0.paths=[a.py, b.py]", "evaluation.prompts=['x', 'y=z']"]
    job = load_job(PipelineJob, str(config), [*words, "model.config.n_layer=3"])
    assert [corpus.name for corpus in job.data.corpora] == ["code", "second"]
    assert job.data.corpora[0].paths == ["a.py", "b.py"]
    assert job.evaluation.prompts == ["x", "y=z"]
    assert isinstance(job.model.config, dict)
    assert job.model.config["n_layer"] == 3


def test_a_number_may_be_written_as_json_writes_it(config: Path) -> None:
    words = [
        "training.schedule_options={min_lr: 1e-5}",
        "model.config.layer_norm_epsilon=1E+2",
        "training.epsilon=1e-7",
    ]
    job = load_job(PipelineJob, str(config), words)
    assert isinstance(job.model.config, dict)
    assert (job.training.schedule_options["min_lr"], job.model.config["layer_norm_epsilon"]) == (1e-5, 100.0)
    assert job.training.epsilon == 1e-7
    assert parse_yaml("[1_000, -3, 0x1f, 0b11, 1.5, .5, 1., -.inf, 007, 1:30]") == [
        1000, -3, 31, 3, 1.5, 0.5, 1.0, -math.inf, "007", "1:30"
    ]  # fmt: skip
    assert load_job(PipelineJob, str(config), ["training.max_steps=010"]).training.max_steps == 10, "it was 8"
    with pytest.raises(ConfigError, match=r"training\.max_steps"):
        load_job(PipelineJob, str(config), ["training.max_steps=1:30"])
    assert load_job(PipelineJob, str(config), ["evaluation.prompts=[1e-5 is, v1e5]"]).evaluation.prompts[0] == "1e-5 is"


def test_words_applied_to_a_job_make_the_job_that_they_make_with_its_file(config: Path) -> None:
    words = [
        "training.max_steps=9",
        "data.corpora.1.name=second",
        "evaluation.max_windows=3",
        "promotion={name: lm, threshold: 1}",
    ]
    job, expected = override(load_job(PipelineJob, str(config)), words), load_job(PipelineJob, str(config), words)
    assert job == expected and job.training.model_fields_set == expected.training.model_fields_set
    with pytest.raises(ConfigError, match=r"`job` with `set` training.max_stps=9: training.max_stps: unknown key"):
        override(job, ["training.max_stps=9"])


def test_only_the_configuration_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    add_config(parser)
    with pytest.raises(SystemExit):
        parser.parse_intermixed_args([])
    assert capsys.readouterr().err.endswith("the following arguments are required: config\n")
    assert parser.parse_intermixed_args(["job.yaml"]).overrides == []


def test_the_quickstart_is_a_valid_job() -> None:
    job = load_job(PipelineJob, str(ROOT / "configs" / "quickstart.yaml"))
    assert len(job.data.corpora) == 3


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "data.task=chatt",
            "data.task is 'chatt'; expected one of classification, multi-label, regression, tokens, chat",
        ),
        ("data.task=null", "data.chat_template requires data.task chat or preference"),
    ],
)
def test_conversations_without_their_task_are_refused_by_that_alone(word: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"^configuration [^;]*chat\.yaml: {expected}[^;]*$"):
        load_training_job(str(ROOT / "configs" / "chat.yaml"), [word])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stores=x", "stores: unknown key; did you mean 'store'?"),
        ("data.corporas=[]", "data.corporas: unknown key; did you mean 'corpora'?"),
        ("data.corpora.0.path=[x]", "data.corpora.0.path: unknown key; did you mean 'paths'?"),
        ("data.tokenizer.vocabsize=300", "data.tokenizer.vocabsize: unknown key; did you mean 'vocab_size'?"),
        ("data.shards.shards=3", "data.shards.shards: unknown key; did you mean 'num_shards'?"),
        ("model.pretrain=x", "model.pretrain: unknown key; did you mean 'pretrained'?"),
        ("evaluation.tempreature=1", "evaluation.tempreature: unknown key; did you mean 'temperature'?"),
        ("evaluation.zzz=1", "evaluation.zzz: unknown key; known keys are batch, max_windows, prompts"),
    ],
)  # fmt: skip
def test_an_unknown_key_at_any_level_is_refused_with_the_one_that_was_meant(
    config: Path, word: str, expected: str
) -> None:
    assert expected in refused(config, word)


def test_everything_that_is_wrong_is_said_at_once(config: Path) -> None:
    message = refused(config, "training.lerning_rate=1", "evaluation.batch=0", "data.workers=zero")
    assert message.count("; ") >= 2
    assert all(part in message for part in ("training.lerning_rate", "evaluation.batch", "data.workers"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"- a\n- b\n", "expected keys with values, found the list"),
        (b"", "expected keys with values, found nothing"),
        (b"a: [1\n", "is not YAML"),
        (b"\xff\xfe", "cannot be read"),
        (b"a: !!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    message = refused(path)
    assert expected in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("store: a\ndata:\n  x: 1\nstore: b\n", "duplicate key 'store' in lines 1 and 4"),
        (
            "training:\n  max_steps: 1\n  learning_rate: 1\n  max_steps: 2\n",
            "duplicate key 'max_steps' in lines 2 and 4",
        ),
        ("model: {config: {n_layer: 1,\n n_layer: 2}}\n", "duplicate key 'n_layer' in lines 1 and 2"),
        ("corpora:\n- {name: a}\n- name: b\n  'name': c\n", "duplicate key 'name' in lines 3 and 4"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n  y: 1\n  y: 2\n", "duplicate key 'y' in lines 4 and 5"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(content)
    assert f"configuration {path}: {expected}" in refused(path)


def test_a_key_may_replace_one_that_was_merged_in_and_stand_again_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\nc: {x: 4}\n")
    assert read_values(str(path)) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 4}}


def test_a_word_whose_value_has_a_key_twice_is_refused(config: Path) -> None:
    assert "duplicate key 'n_layer'" in refused(config, "model.config={model_type: gpt2, n_layer: 1, n_layer: 2}")


@pytest.mark.parametrize("text", ["on", "off", "yes", "No", "y", "2026-01-01", "2026-13-45", "1:30", "="])
def test_only_true_and_false_are_booleans_and_no_text_is_a_date(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"store: {text}\n{text}: [{text}]\n")
    assert read_values(str(path)) == {"store": text, text: [text]}


def test_two_escapes_of_a_surrogate_pair_are_one_character_as_in_json(config: Path) -> None:
    job = load_job(PipelineJob, str(config), ['evaluation.prompts=["a\\ud83d\\ude00", "\\ufeffb"]'])
    assert job.evaluation.prompts == ["a\U0001f600", "\ufeffb"]


@pytest.mark.parametrize("word", ['evaluation.prompts=["once", "\\ud83d"]', "store=\ud83d"])
def test_half_of_a_surrogate_pair_is_refused(word: str, config: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'\\ud83d' contains half of a surrogate pair, .* at character 1 of the text"
    ):
        load_job(PipelineJob, str(config), [word])


@pytest.mark.parametrize(("text", "meant"), [("true", True), ("False", False), ("yes", True), ("off", False)])
def test_a_boolean_field_takes_each_spelling(text: str, meant: bool, config: Path) -> None:
    assert load_job(PipelineJob, str(config), [f"training.compile={text}"]).training.compile is meant


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    assert f"configuration {tmp_path / 'none.yaml'} cannot be read" in refused(tmp_path / "none.yaml")


def test_a_word_changes_one_of_two_places_that_an_alias_filled(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train: &files [a.csv]\nvalidation: *files\n")
    assert read_values(str(path), ["train.0=b.csv"]) == {"train": ["b.csv"], "validation": ["a.csv"]}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("training.save_every=yes", "training.save_every: expected a whole number, found 'yes'"),
        ("training.learning_rate=false", "training.learning_rate: expected a number, found false"),
        (
            "training.schedule_options={num_cycles: true}",
            "training.schedule_options.num_cycles: expected text or a number",
        ),
        ("data.corpora.0.max_bad_records=true", "data.corpora.0.max_bad_records: expected a whole number, found true"),
    ],
)
def test_true_and_false_are_no_numbers(word: str, says: str, config: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_job(PipelineJob, str(config), [word])
    said = refused(config, word, "training.contxt=9")
    assert says in said and "training.contxt: unknown key; did you mean 'context'?" in said


def test_an_alias_within_what_it_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train: &x [*x]\n")
    with pytest.raises(ConfigError, match="an alias refers to a value that contains it"):
        read_values(str(path))


@pytest.mark.parametrize("schema", [PrepareJob, PipelineJob, EvaluateJob])
def test_every_field_of_every_schema_is_explained_with_its_description(schema: type[BaseModel]) -> None:
    text = explain(schema)
    fields = list(every_field(schema, ""))
    assert len(fields) > 10
    for name, description in fields:
        assert description, f"{name} has no description"
        assert f"{name} " in text or f"{name}:" in text
        assert description in text


def every_field(schema: type[BaseModel], prefix: str) -> list[tuple[str, str | None]]:
    found = []
    for name, field in schema.model_fields.items():
        found.append((prefix + name, field.description))
        for part in schemas_in(field.annotation):
            many = get_origin(field.annotation) is list
            found += every_field(part, f"{prefix}{name}.{'N.' if many else ''}")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "  training.learning_rate  number > 0, default 0.0005",
        "  training.global_batch  whole number ≥ 1, default 8",
        "  training.optimizer  adamw|adafactor|sgd|muon, default adamw",
        "  training.compile  true|false, default False",
        "  data.corpora.N.paths  list of text, required",
        "  model.config  mapping or text, optional",
        "  store  text, required",
        "  data.tokenizer.vocab_size  whole number ≥ 257 and ≤ 16777216, optional",
    ],
)
def test_an_explanation_gives_type_bounds_and_default(line: str) -> None:
    assert line in explain(PipelineJob).splitlines()


def test_no_field_is_explained_with_a_python_type() -> None:
    text = explain(PipelineJob) + explain(EvaluateJob)
    assert not [word for word in ("typing.", "<class", "Annotated", "NoneType") if word in text]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[SEP]", "[SEP]"), ("yes", "yes"), ("1e-3", "1e-3"), ("0123", "0123"), ("{a}", "{a}"), ("#x", "#x"),
        ("a #x", "a #x"),
        ("2026-01-02", "2026-01-02"), ("*", "*"), ("|", "|"), ("a: b", "a: b"), ('"', '"'), (" end ", " end "),
        (" ", " "), ("\t", "\t"), ('"a" #b', '"a" #b'), ('"a" and "b"', '"a" and "b"'),
        ("<|end|>", "<|end|>"), ('"#x"', "#x"), ("'null'", "null"), ('"\\n"', "\n"), ("null", None), ("", None),
        ("~", None),
    ],
)  # fmt: skip
def test_a_word_for_a_text_is_taken_as_it_stands(said: str, meant: str | None, config: Path) -> None:
    words = [f"data.tokenizer.mask_token={said}"]
    assert load_job(PipelineJob, str(config), words).data.tokenizer.mask_token == meant
    assert override(load_job(PipelineJob, str(config)), words).data.tokenizer.mask_token == meant
    assert read_values(str(config), words, (PipelineJob, FinetuneJob))["data"]["tokenizer"]["mask_token"] == meant


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "evaluation.prompts=[true]",
            """prompts.0: expected text, found true; in quotes it is text: "true" in a file""",
        ),
        (
            "evaluation.prompts=#x",
            """'#x' as a comment, so the value is empty; a list with one text is 'evaluation.prompts=["#x"]'""",
        ),
        (
            "model.config.act=#x",
            """as a comment, so the value is empty; to pass it as text, quote it: 'model.config.act="#x"'""",
        ),
        ("training.max_steps=[9]", "training.max_steps: expected a whole number, found the list [9]"),
    ],
)
def test_a_word_for_another_thing_is_told_how_to_be_quoted(word: str, says: str, config: Path) -> None:
    assert says in refused(config, word)


def test_a_comment_for_a_number_is_not_told_to_be_text(config: Path) -> None:
    assert refused(config, "training.max_steps=#9").endswith("YAML reads '#9' as a comment, so the value is empty")


def test_a_file_after_a_setting_is_told_to_come_first(config: Path) -> None:
    assert refused(Path("training.max_steps=9"), str(config)) == (
        f"{str(config)!r} is not key=value, such as training.max_steps=100; a YAML file is given before all settings"
    )


def test_settings_alone_are_a_configuration(tmp_path: Path) -> None:
    job = load_job(EvaluateJob, f"store={tmp_path}", ["checkpoint=a=b", "evaluation.batch=3"])
    assert (job.store, job.checkpoint, job.evaluation.batch) == (str(tmp_path), "a=b", 3)
    with pytest.raises(ConfigError, match=r"^configuration on the command line: checkpoint: missing"):
        load_job(EvaluateJob, "store=s")


def test_a_file_whose_name_has_an_equals_sign_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lr=3.yaml"
    path.write_text("store: s\ncheckpoint: c\n")
    assert load_job(EvaluateJob, str(path)).checkpoint == "c"


def test_shipped_jobs_name_each_others_models_as_runs() -> None:
    """A name alone would be that of a model of the hub."""
    files = [path for folder in ("configs", "deployments", "flows/starters") for path in (ROOT / folder).glob("*.yaml")]
    found = [each for path in files for document in yaml.safe_load_all(path.read_text()) for each in mappings(document)]
    jobs = {each["name"] for each in found if "name" in each and "store" in each}
    bases = [each["pretrained"] for each in found if each.get("pretrained")]
    assert {"functions", "chat-base"} <= jobs and len(bases) > 5
    assert not jobs.intersection(bases)
    assert "runs/functions" in bases


def mappings(value: object) -> Iterator[dict[str, Any]]:
    """All mappings in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(each)

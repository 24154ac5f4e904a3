"""What is typed, and what is said: the whole message about each of some fifty mistakes.

A message says where the mistake is, what was expected there and what was found, in words that need no look into a
library.
"""

from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support import small_values, write_config, write_corpora
from tests.trainer.made import prepare
from tests.trainer.small_tokenizers import saved, word_piece
from trainer.common.addresses import INSTEAD
from trainer.common.errors import ConfigError, PipelineError
from trainer.common.progress import silent
from trainer.config.files import load_job
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.preflight import preflight


class Said(NamedTuple):
    """A mistake, the words that are typed after a good job's file, and the message; `{here}` is the folder of that
    file.
    """

    mistake: str
    typed: list[str]
    message: str


TABLE = [
    Said(
        "more than any number",
        ["training.max_steps=1e999"],
        "ConfigError: configuration {here}/job.yaml: training.max_steps: expected a finite number, found .inf",
    ),
    Said(
        "no path",
        ["store="],
        "ConfigError: configuration {here}/job.yaml: store: expected text, found nothing",
    ),
    Said(
        "credentials in the store's address",
        ["store=s3://AKIA:h0pe@bucket/prefix"],
        "ConfigError: configuration {here}/job.yaml: store: 's3://***@bucket/prefix' holds credentials, which would be "
        f"recorded with the results: {INSTEAD}",
    ),
    Said(
        "credentials where no text is expected",
        ["data.corpora.0.paths=s3://AKIA:h0pe@bucket/raw"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0.paths: expected a list, found "
        "'s3://***@bucket/raw'; a list with one entry is [s3://***@bucket/raw]",
    ),
    Said(
        "credentials under a key that there is not",
        ["stor=s3://AKIA:h0pe@bucket/raw"],
        "ConfigError: configuration {here}/job.yaml: stor: unknown key; did you mean 'store'?",
    ),
    Said(
        "a number in a list of texts",
        ["evaluation.prompts=[once, 1]"],
        "ConfigError: configuration {here}/job.yaml: evaluation.prompts.1: expected text, found 1; in quotes it is "
        "text: "
        '"1" in a file, \'evaluation.prompts.1="1"\' on the command line',
    ),
    Said(
        "one text where a list is expected",
        ["data.corpora.0.paths=raw/*.txt"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0.paths: expected a list, found 'raw/*.txt'; a list "
        "with one entry is [raw/*.txt]",
    ),
    Said(
        "an empty list",
        ["data.corpora.0.paths=[]"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0.paths: expected at least 1 entry, found the list "
        "[]",
    ),
    Said(
        "a name that leads out of the store",
        ["run=../elsewhere"],
        "ConfigError: configuration {here}/job.yaml: run: expected letters, digits and _ . - only, a letter or digit "
        "first, found '../elsewhere'",
    ),
    Said(
        "a name with a blank",
        ["name=my run"],
        "ConfigError: configuration {here}/job.yaml: name: expected letters, digits and _ . - only, a letter or digit "
        "first, found 'my run'",
    ),
    Said(
        "a name that is too long",
        ["name=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"],
        "ConfigError: configuration {here}/job.yaml: name: expected at most 64 characters, found "
        "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'",
    ),
    Said(
        "a license's title",
        ["card.license=Apache 2.0"],
        "ConfigError: configuration {here}/job.yaml: card.license: expected a license's identifier on the Hugging Face "
        "hub, such as apache-2.0, found 'Apache 2.0'",
    ),
    Said(
        "a language's name",
        ["card.language=[English]"],
        "ConfigError: configuration {here}/job.yaml: card.language.0: expected an ISO 639 code, such as en, or code, "
        "or multilingual, found 'English'",
    ),
    Said(
        "a value where keys are expected",
        ["model=gpt2"],
        "ConfigError: configuration {here}/job.yaml: model: expected keys with values, found 'gpt2'; known keys are "
        "config, pretrained, pad_vocab_to, attention, lora, quantize",
    ),
    Said(
        "a value where a list of keys is expected",
        ["data.corpora.0=raw/*.txt"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0: expected keys with values, found 'raw/*.txt'; "
        "known keys are name, paths, format, text_field, separator, delimiter, quoting, max_bad_records",
    ),
    Said(
        "a number for a model's configuration",
        ["model.config=5"],
        "ConfigError: configuration {here}/job.yaml: model.config: expected keys with values or text, found 5",
    ),
    Said(
        "a number for a model's key",
        ["model.config={1: 2}"],
        "ConfigError: configuration {here}/job.yaml: model.config.1: expected a key that is text, found 1",
    ),
    Said(
        "a list in a schedule's option",
        ["training.schedule_options={num_cycles: [1]}"],
        "ConfigError: configuration {here}/job.yaml: training.schedule_options.num_cycles: expected a number or text, "
        "found the list [1]",
    ),
    Said(
        "half a step",
        ["training.max_steps=1.5"],
        "ConfigError: configuration {here}/job.yaml: training.max_steps: expected a whole number, found 1.5",
    ),
    Said(
        "steps in words",
        ["training.max_steps=many"],
        "ConfigError: configuration {here}/job.yaml: training.max_steps: expected a whole number, found 'many'",
    ),
    Said(
        "no step",
        ["training.max_steps=0"],
        "ConfigError: configuration {here}/job.yaml: training.max_steps: expected at least 1, found 0",
    ),
    Said(
        "a rate that is no number",
        ["training.learning_rate=.nan"],
        "ConfigError: configuration {here}/job.yaml: training.learning_rate: expected a finite number, found .nan",
    ),
    Said(
        "a rate of nothing",
        ["training.learning_rate=0"],
        "ConfigError: configuration {here}/job.yaml: training.learning_rate: expected more than 0, found 0",
    ),
    Said(
        "neither yes nor no",
        ["training.compile=maybe"],
        "ConfigError: configuration {here}/job.yaml: training.compile: expected true or false, found 'maybe'",
    ),
    Said(
        "a precision that there is not",
        ["training.precision=fp8"],
        "ConfigError: configuration {here}/job.yaml: training.precision: expected 'fp32', 'bf16' or 'fp16', found "
        "'fp8'",
    ),
    Said(
        "two characters for one",
        ["data.corpora.0.delimiter='||'"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0.delimiter: expected one character, no quote or "
        "line end (a tab is \"\\t\" in double quotes), found '||'",
    ),
    Said(
        "more than a great number",
        ["data.tokenizer.vocab_size=20_000_000"],
        "ConfigError: configuration {here}/job.yaml: data.tokenizer.vocab_size: expected at most 16777216, found "
        "20000000",
    ),
    Said(
        "a key that is left out",
        ["data.corpora.0={paths: [raw/a.txt]}"],
        "ConfigError: configuration {here}/job.yaml: data.corpora.0.name: missing (name of the corpus, used in "
        "directory names and reports)",
    ),
    Said(
        "settings of the whole that contradict each other",
        ["resume=fork"],
        "ConfigError: configuration {here}/job.yaml: resume: fork needs `run`, the name of the run to start from",
    ),
    Said(
        "settings of a part that contradict each other",
        ["training.epochs=2"],
        "ConfigError: configuration {here}/job.yaml: training: give either epochs or max_steps",
    ),
    Said(
        "a word without a value",
        ["training.max_steps"],
        "ConfigError: 'training.max_steps' is not key=value, such as training.max_steps=100",
    ),
    Said(
        "a value without a key",
        ["=5"],
        "ConfigError: '=5' is not key=value, such as training.max_steps=100",
    ),
    Said(
        "an entry beyond a list's end",
        ["data.corpora.7.name=x"],
        "ConfigError: 'data.corpora.7.name=x' cannot be set: the list data.corpora has 2 entries, numbered from 0; 7 "
        "is not one of them",
    ),
    Said(
        "an entry of a list by name",
        ["data.corpora.code.name=x"],
        "ConfigError: 'data.corpora.code.name=x' cannot be set: the list data.corpora has 2 entries, numbered from 0; "
        "code is not one of them",
    ),
    Said(
        "a key of a text",
        ["name.more=x"],
        "ConfigError: 'name.more=x' cannot be set: name is 'tiny', which has no keys",
    ),
    Said(
        "a list that does not end",
        ["evaluation.prompts=[a"],
        "ConfigError: 'evaluation.prompts=[a' cannot be set: '[a' is not YAML: expected ',' or ']', but got '<stream "
        "end>' (line 1, column 3)",
    ),
    Said(
        "a model's configuration that is not there",
        ["model.config=nowhere.yaml"],
        "ConfigError: model config nowhere.yaml cannot be read: No such file or directory",
    ),
    Said(
        "a model's configuration that is a list",
        ["model.config={here}/list.json"],
        "ConfigError: model config {here}/list.json: expected keys with values, found the list [1]",
    ),
    Said(
        "a tokenizer's path that is not there",
        ["data.tokenizer={path: /nowhere/tokenizer.json}"],
        "TokenizerError: tokenizer '/nowhere/tokenizer.json' cannot be loaded: it is no local file or folder, and "
        "not a name of the Hugging Face hub (MODEL or OWNER/MODEL); check the path",
    ),
    Said(
        "a tokenizer's folder that is empty",
        ["data.tokenizer={path: {here}/empty}"],
        "TokenizerError: tokenizer '{here}/empty' cannot be loaded: it has neither tokenizer.json nor a vocabulary",
    ),
    Said(
        "a tokenizer that names no end",
        ["data.tokenizer={path: {here}/endless.json}"],
        "TokenizerError: tokenizer '{here}/endless.json' has no end-of-document token; set data.tokenizer.eos_token "
        "to "
        'one of its tokens: its special ones are "[UNK]", "[SEP]"',
    ),
    Said(
        "an end that a tokenizer does not have",
        ["data.tokenizer={path: {here}/endless.json, eos_token: <end>}"],
        "TokenizerError: tokenizer '{here}/endless.json' has no token '<end>'; set data.tokenizer.eos_token to one of "
        "its "
        'tokens: its special ones are "[UNK]", "[SEP]"',
    ),
    Said(
        "a model's path that is not there",
        ["model={pretrained: /nowhere}"],
        "ArtifactError: no checkpoint '/nowhere': neither a run in {here}/store/runs, nor a published folder there, "
        "nor a model folder; it is no local file or folder, and not a name of the Hugging Face hub (MODEL or "
        "OWNER/MODEL); check the path",
    ),
    Said(
        "a model's folder that is empty",
        ["model={pretrained: {here}/empty}"],
        "ArtifactError: no checkpoint '{here}/empty': neither a run in {here}/store/runs, nor a published folder "
        "there, nor a model folder; the folder has no config.json: give a model's folder",
    ),
    Said(
        "a folder for files",
        ["data.corpora.0.paths=[{here}/raw/code]"],
        "CorpusError: corpus 'code': '{here}/raw/code' is a folder; list its files with '{here}/raw/code/*', or "
        "'{here}/raw/code/**' to include subfolders",
    ),
    Said(
        "files in a place of no known kind",
        ["data.corpora.0.paths=['nowhere://x/*']"],
        "CorpusError: 'nowhere://x/*' cannot be read: Protocol not known: nowhere",
    ),
    Said(
        "a store of no known kind",
        ["store=nowhere://x"],
        "StorageError: the store 'nowhere://x' cannot be opened: Protocol not known: nowhere",
    ),
    Said(
        "a store where none can be",
        ["store=/proc/nowhere"],
        "StorageError: cannot write /proc/nowhere: No such file or directory; check that the disk or the bucket exists",
    ),
    Said(
        "a store that is a file",
        ["store={here}/list.json"],
        "StorageError: cannot write {here}/list.json/.staging: Not a directory; choose a folder, not a file, for the "
        "store",
    ),
    Said(
        "a bad record",
        ["data.corpora.1.paths=[{here}/bad.jsonl]"],
        "RecordError: {here}/bad.jsonl: line 2: no field 'text'; it has body; set text_field to the field that holds "
        "the text (max_bad_records is 0: correct the record or raise it)",
    ),
    Said(
        "one bad record too many",
        ["data.corpora.1.paths=[{here}/bad.jsonl]", "data.corpora.1.max_bad_records=1"],
        "RecordError: {here}/bad.jsonl: line 3: field 'text' holds int, not text (more than the 1 that max_bad_records "
        "allows: correct the records or raise it)",
    ),
    Said(
        "a stop that no evaluation can bring about",
        ["training.early_stopping=2", "training.max_steps=6"],
        "ConfigError: training.early_stopping is 2, but the run is evaluated 1 time in all (at the end of each epoch "
        "and of the run), so it can never stop early; set a smaller training.evaluate_every, or remove early_stopping",
    ),
    Said(
        "an option that a schedule does not take",
        ["training.schedule_options={cycles: 2}"],
        "ConfigError: training.schedule_options do not fit the schedule 'cosine': it does not take 'cycles'; it takes "
        "num_cycles",
    ),
    Said(
        "an option that a schedule needs",
        ["training.schedule=warmup_stable_decay"],
        "ConfigError: training.schedule_options do not fit the schedule 'warmup_stable_decay': it needs "
        "'num_decay_steps'",
    ),
    Said(
        "an option that requires one of two others",
        ["training.schedule=cosine_with_min_lr"],
        "ConfigError: training.schedule_options do not fit the schedule 'cosine_with_min_lr': it needs either "
        "min_lr or min_lr_rate",
    ),
]


WRITTEN: list[tuple[str, Any, str]] = [
    (
        "data.tokenizer.eos_token",
        ["SEP"],
        'expected text, found the list [SEP]; in quotes it is text: "[SEP]" in a file, '
        "'data.tokenizer.eos_token=\"[SEP]\"' on "
        "the command line",
    ),
    ("run", 123, 'expected text, found 123; in quotes it is text: "123" in a file, \'run="123"\' on the command line'),
    (
        "store",
        True,
        'expected text, found true; in quotes it is text: "true" in a file, \'store="true"\' on the command line',
    ),
]
"""What stands in a file without quotes, as YAML takes it, and what is said of it."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good job with two small corpora, and beside it what some mistakes name."""
    folder = tmp_path_factory.mktemp("typed")
    write_corpora(folder / "raw")
    write_config(folder / "job.yaml", small_values(folder / "raw", folder / "store"))
    (folder / "empty").mkdir()
    (folder / "list.json").write_text("[1]")
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"body": "bad"}\n{"text": 7}\n')
    saved(word_piece(), folder / "endless.json")
    return folder


def start(here: Path, typed: list[str]) -> None:
    """What a job's start looks at before it trains."""
    job = load_job(PipelineJob, str(here / "job.yaml"), [word.replace("{here}", str(here)) for word in typed])
    preflight(job, silent())
    prepare(job.preparation(), silent())
    preflight(job, silent())


@pytest.mark.parametrize("said", TABLE, ids=lambda said: said.mistake)
def test_a_mistake_is_told_as_whoever_made_it_sees_it(said: Said, here: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        start(here, said.typed)
    message = f"{type(caught.value).__name__}: {caught.value}"
    assert message.replace(str(here), "{here}") == said.message
    internals = (
        "Errno",
        "Input should",
        "pattern",
        "dictionary",
        "NoneType",
        "Repo id",
        "Traceback",
        "instance of",
        "0.0 GB",
    )
    assert not [word for word in internals if word in message]


@pytest.mark.parametrize(("field", "value", "said"), WRITTEN, ids=[field for field, _, _ in WRITTEN])
def test_text_in_a_file_that_yaml_takes_for_something_else_is_refused_with_how_to_quote_it(
    field: str, value: Any, said: str, here: Path
) -> None:
    values = yaml.safe_load((here / "job.yaml").read_text())
    *way, last = field.split(".")
    reduce(dict.__getitem__, way, values)[last] = value
    (here / "written.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        load_job(PipelineJob, str(here / "written.yaml"))
    assert str(caught.value) == f"configuration {here}/written.yaml: {field}: {said}"

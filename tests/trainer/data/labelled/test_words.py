"""A label for each word: read from every source, refused where it cannot be, and aligned with tokens as the libraries
do.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForTokenClassification

from tests.trainer.labelled_data import (
    END,
    as_jsonl,
    as_parquet,
    bert_folder,
    gpt2_folder,
    job_of,
    load,
    opened,
    read,
    written,
)
from tests.trainer.labelled_words import CLASSES, word_job, word_rows, write_words
from tests.trainer.made import encode
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.common.errors import CorpusError, RecordError, TokenizerError
from trainer.common.progress import silent
from trainer.config.labelled import LabelledDataConfig, PredictJob
from trainer.data.encoded import IGNORED, encoded_details, tokenizer_paths
from trainer.data.labelled.encoded import EncodedSet, EncodedWords
from trainer.data.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.kinds.labelled.predict import predict_texts
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.basis import split_content
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

OPTIONS: dict[str, Any] = {
    "task": "tokens", "text_columns": ["tokens"], "label_column": "ner_tags", "id_column": None, "max_length": 12,
}  # fmt: skip


def course_labels(tokenizer: Any, row: dict[str, Any], length: int) -> tuple[list[int], list[int]]:
    """Ids and labels of tokens as the documentation of `transformers` aligns them, the label at a word's first token
    only.

    Of a word that is cut on the left, that token is not there: what is left of it has no label.
    """
    inputs = tokenizer(row["tokens"], truncation=True, is_split_into_words=True, max_length=length)
    whole = tokenizer(row["tokens"], is_split_into_words=True, add_special_tokens=False).word_ids()
    kept = [word for word in inputs.word_ids() if word is not None]
    cut = len(whole) - len(kept) if tokenizer.truncation_side == "left" else 0
    labels, previous = [], whole[cut - 1] if cut else None
    for word in inputs.word_ids():
        if word is None or word == previous:
            labels.append(-100)
        else:
            labels.append(CLASSES.index(row["ner_tags"][word]))
        previous = word if word is not None else previous
    return inputs["input_ids"], labels


@pytest.mark.parametrize(
    ("family", "settings"), [("bert", {}), ("bert", {"truncation_side": "left"}), ("gpt2", {}), ("GPT2Tokenizer", {})]
)
def test_labels_stand_where_transformers_puts_them(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if family == "bert":
        model = bert_folder(tmp_path / "model", settings=settings)
    else:
        kind = {"tokenizer_class": family} if family != "gpt2" else {}
        model = gpt2_folder(tmp_path / "model", **kind)
    rows = [row for row in word_rows(120) if len(row["tokens"][-1]) <= 10]
    found = encoded(tmp_path, rows, model)
    split = found.splits["train"]
    folder = tmp_path / "published"
    folder.mkdir()
    (key,) = Path(tmp_path / "store" / "encoded").iterdir()
    for file in tokenizer_paths(Store(str(tmp_path / "store")), f"encoded/{key.name}"):
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [course_labels(tokenizer, row, 12) for row in rows]
    assert split.lengths.tolist() == [len(ids) for ids, _ in expected]
    for place, (ids, labels) in enumerate(expected):
        examples = np.array([place])
        assert split.read(examples)["input_ids"][0].tolist() == ids
        assert split.batch_labels(examples, len(ids))[0].tolist() == labels
    batch = split.batch_labels(np.arange(len(rows)), 12)
    assert batch.tolist() == [[*labels, *[IGNORED] * (12 - len(labels))] for _, labels in expected]
    seen = sum(label != IGNORED for _, labels in expected for label in labels)
    told = found.details["splits"]["train"]
    assert told["words"] == sum(len(row["tokens"]) for row in rows)
    assert told["words"] - told["unseen_words"] == seen == split.predictions == len(split.labels)


def test_a_word_that_fills_a_text_cut_on_the_left_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = bert_folder(tmp_path / "model", settings={"truncation_side": "left"})
    rows = [{"tokens": ["a", "a-" * 45], "ner_tags": CLASSES[:1] * 2}]
    with pytest.raises(
        RecordError,
        match=r"rows.jsonl: line 6: no word can have a label: the last one is longer than data.max_length, and texts",
    ):
        encoded(tmp_path, [*word_rows(5), *rows], model)


def encoded(tmp_path: Path, rows: list[dict[str, Any]], model: Path, **changes: Any) -> EncodedSet:
    path = [written(tmp_path / "rows.jsonl", as_jsonl(rows))]
    options = {**OPTIONS, "classes": CLASSES, **changes}
    return opened(job_of(tmp_path / "store", source="jsonl", train=path, validation=path, **options), model)


def test_words_before_which_the_tokenizer_puts_no_space_get_one(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "model")
    split = encoded(tmp_path, [{"tokens": ["return", "the", "file"], "ner_tags": ["O"] * 3}], folder).splits["train"]
    text = load(folder)(" return the file")["input_ids"]
    assert split.read(np.array([0]))["input_ids"][0].tolist() == text


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "described", "disk", "ids"])
def test_every_source_gives_the_same_labels(kind: str, tmp_path: Path) -> None:
    rows, options = word_rows(20), {**OPTIONS, "id_column": "id"}
    numbered = [{**row, "ner_tags": [CLASSES.index(tag) for tag in row["ner_tags"]]} for row in rows]
    if kind in ("disk", "described"):
        features = datasets.Features({
            "id": datasets.Value("string"), "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=CLASSES)),
        })  # fmt: skip
        saved = datasets.Dataset.from_list(numbered, features=features)
        if kind == "disk":
            datasets.DatasetDict({"train": saved, "validation": saved}).save_to_disk(str(tmp_path / "saved"))
            found = read(source="disk", path=str(tmp_path / "saved"), **options)
        else:
            saved.to_parquet(path := str(tmp_path / "saved.parquet"))
            found = read(source="parquet", train=[path], validation=[path], **options)
    else:
        source = "parquet" if kind == "parquet" else "jsonl"
        pack = as_parquet if kind == "parquet" else as_jsonl
        path = [written(tmp_path / f"a.{source}", pack(numbered if kind == "ids" else rows))]
        test = [written(tmp_path / f"b.{source}", pack([{"id": row["id"], "tokens": row["tokens"]} for row in rows]))]
        found = read(source=source, train=path, validation=path, test=test, **options, classes=CLASSES)
        assert [each.tolist() for each in found.labels["test"]] == [[]] * len(rows)
    assert found.classes == CLASSES
    assert [each.tolist() for each in found.labels["train"]] == [row["ner_tags"] for row in numbered]
    assert found.texts["train"] == [tuple(row["tokens"]) for row in rows]


def labels_of(tmp_path: Path, *rows: tuple[Any, Any], test: Any = None, **changes: Any) -> Any:
    files = {"train": rows, "validation": rows, **({"test": test} if test else {})}
    paths = {
        split: [
            written(
                tmp_path / f"{split}.jsonl", as_jsonl([{"tokens": words, "ner_tags": tags} for words, tags in each])
            )
        ]
        for split, each in files.items()
    }
    return read(source="jsonl", **paths, **{**OPTIONS, **changes}).labels


def test_bad_words_and_labels_name_their_line(tmp_path: Path) -> None:
    good = (["a", "b"], ["O", "B-X"])
    for row, message in (
        (
            (["a", "b"], ["O"]),
            r"line 2: column 'tokens' holds 2 words, but column 'ner_tags' holds 1 labels; each word needs one",
        ),
        (([], []), r"line 2: column 'tokens' holds an empty list instead of words"),
        (([" "], ["O"]), r"line 2: column 'tokens' is empty"),
        (("a b", ["O", "O"]), r"line 2: column 'tokens' holds str, not a list of words"),
        ((None, ["O"]), r"line 2: column 'tokens' holds nothing, not a list of words"),
        ((["a", 2], ["O", "O"]), r"line 2: column 'tokens' holds int, not text"),
        ((["a", "\ud800"], ["O", "O"]), r"line 2: column 'tokens' is not valid UTF-8 at character 0"),
        ((["a"], "O"), r"line 2: column 'ner_tags' holds str, not a list with a label for each word"),
        ((["a", "b"], ["O", None]), r"line 2: column 'ner_tags': word 2 of 2 has an empty label"),
        ((["a"], None), r"line 2: column 'ner_tags': there are no labels"),
        ((["a"], [[1]]), r"line 2: column 'ner_tags' holds list, not a label"),
    ):
        with pytest.raises(RecordError, match=rf"train split: .*train.jsonl: {message}"):
            labels_of(tmp_path, good, row)
    with pytest.raises(
        RecordError, match=r"line 2: column 'ner_tags': word 2 of 2: 'I-Y' is not a class; the classes are 'B-X', 'O'"
    ):
        labels_of(tmp_path, good, (["a", "b"], ["O", "I-Y"]), classes=["B-X", "O"])
    with pytest.raises(RecordError, match=r"line 1: column 'ner_tags': word 1 of 1: -100 is not a class"):
        labels_of(tmp_path, (["a"], [-100]), classes=["B-X", "O"])
    with pytest.raises(CorpusError, match=r"mean 4 classes, but 2 has no example. 3 is first at .*train.jsonl: line 2"):
        labels_of(tmp_path, (["a", "b"], [0, 1]), (["a", "b"], [0, 3]))
    with pytest.raises(
        CorpusError, match=r"holds integers \(0\) and other texts \('B-X'\): correct them, or list all classes"
    ):
        labels_of(tmp_path, (["a", "b"], [0, "B-X"]))
    with pytest.raises(CorpusError, match="integers up to 70 in 4 examples"):
        labels_of(tmp_path, (["a", "b"], [0, 1]), (["a", "b"], [0, 70]))


def test_two_words_may_always_have_the_two_labels(tmp_path: Path) -> None:
    found = labels_of(tmp_path, (["a", "b"], [0, 1]), (["c", "d"], [1, 0]))
    assert [each.tolist() for each in found["train"]] == [[0, 1], [1, 0]]


def test_test_words_may_be_without_labels_or_have_them_withheld(tmp_path: Path) -> None:
    train = (["a", "b"], ["O", "B-X"])
    found = labels_of(tmp_path, train, test=[(["a"], None), (["a", "b"], [-1, -1]), (["c"], [-100]), (["d"], ["B-X"])])
    assert [each.tolist() for each in found["test"]] == [[], [], [], [0]]
    found = labels_of(tmp_path, (["a", "b"], [0, 1]), (["a"], [-1]), test=[(["c"], [-1])], classes=["-1", "0", "1"])
    assert [each.tolist() for each in found["test"]] == [[0]], "a class of that name"


def test_words_that_the_model_does_not_see_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rows = [
        {"tokens": ["return"] * 12 + ["end"], "ner_tags": ["O"] * 12 + ["B-CODE"]},
        {"tokens": ["a", "", "b"], "ner_tags": ["O"] * 3},
    ]
    split = encoded(tmp_path, rows, bert_folder(tmp_path / "model")).splits["train"]
    assert isinstance(split, EncodedWords)
    assert [each.tolist() for each in split.seen()] == [[True] * 10 + [False] * 3, [True, False, True]]
    assert [split.example_at(row) for row in (0, 9, 10, 11)] == [0, 0, 1, 1]
    assert "does not see 4 of 16 words of the train split: they are beyond 12 tokens, or have no tokens" in caplog.text
    blank = {"tokens": ["\u0007"], "ner_tags": ["O"]}
    with pytest.raises(RecordError, match="line 2: no word can have a label: the tokenizer gives no tokens for any"):
        encoded(tmp_path, [rows[0], blank, rows[1]], tmp_path / "model")
    again = encoded(tmp_path, [rows[0], blank, rows[1]], tmp_path / "model", max_bad_records=1).splits["train"]
    assert isinstance(again, EncodedWords)
    assert (again.ids, again.labels.tolist()) == (["0", "2"], split.labels.tolist())


def test_figures_of_words_that_others_do_not_see_are_of_other_examples(tmp_path: Path) -> None:
    rows, model = word_rows(20), bert_folder(tmp_path / "model")
    data = {"quoting": None, "columns": None, "validation_fraction": None}

    def measured(max_length: int) -> list[Any]:
        return split_content(encoded(tmp_path, rows, model, max_length=max_length).details, data, "validation")

    longest = max(int(each.lengths.max()) for each in encoded(tmp_path, rows, model, max_length=50).splits.values())
    assert measured(longest) == measured(longest + 1), "all words are seen"
    assert measured(longest // 2) != measured(longest)
    assert measured(4) != measured(5)


def test_a_tokenizer_that_knows_no_words_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "model", model_type="byt5")
    (folder / "tokenizer.json").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(TokenizerError, match="is not one of the `tokenizers` library; convert it"):
        encoded(tmp_path, word_rows(10), folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "csv"},
            "task tokens needs lists of words, which source csv cannot hold: use jsonl, parquet, hub or disk",
        ),
        ({"text_columns": ["a", "b"]}, "task tokens reads one column with lists of words: set one in text_columns"),
        ({"label_columns": ["a", "b"]}, "label_columns requires task multi-label, not 'tokens'"),
        ({"label_separator": ";"}, "label_separator requires task multi-label, not 'tokens'"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LabelledDataConfig.model_validate({"source": "jsonl", "train": ["a.jsonl"], **OPTIONS, **changes})


WORDS = ("The", "file", "isn't", "re-opened", ".", " it", "has", "12", "lines")
TEXT = " The file isn't re-opened . it has 12 lines"


def split_first(normalized: bool) -> Tokenizer:
    """A byte-level BPE that splits texts before it looks bytes up, as Llama 3, Qwen2 and SmolLM do."""
    backend = byte_level_bpe()
    quotes = pre_tokenizers.Split("'t", behavior="isolated")
    parts = [pre_tokenizers.Digits(individual_digits=True), quotes, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if normalized:
        backend.normalizer = normalizers.NFC()
    return backend


def encoder_of(model: Path, folder: Path, finished: bool = False) -> TextEncoder:
    data = job_of(folder, source="jsonl", train=["any"], task="tokens", text_columns=["tokens"], id_column=None).data
    return load_text_encoder(model, data, finished)


def ids_of(encoder: TextEncoder) -> list[int]:
    return encoder.encode([WORDS])[0].input_ids.tolist()


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "GPT2Tokenizer", "split", "normalized", "Qwen2Tokenizer"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2"])
def test_words_are_read_as_in_running_text(kind: str, model_type: str, tmp_path: Path) -> None:
    backend = split_first(kind == "normalized") if kind in ("split", "normalized") else byte_level_bpe()
    settings = {"tokenizer_class": kind} if kind.endswith("r") else {}
    model = gpt2_folder(tmp_path / "model", tokenizer=backend, **settings)
    (model / "config.json").write_text(json.dumps({"model_type": model_type, "max_position_embeddings": 64}))
    own = AutoTokenizer.from_pretrained(model)
    encoder = encoder_of(model, tmp_path)
    ids = ids_of(encoder)
    assert ids == own(TEXT)["input_ids"]
    (published := tmp_path / "published").mkdir()
    encoder.save(published)
    shutil.copy(model / "config.json", published)
    assert ids_of(encoder_of(published, tmp_path, finished=True)) == ids, "who predicts"
    again = encoder_of(published, tmp_path)
    assert (ids_of(again), again.digest) == (ids, encoder.digest), "who trains the trained model"
    takes = [
        each
        for each in (AutoTokenizer, PreTrainedTokenizerFast)
        if encoder.other_class is None or each != AutoTokenizer
    ]
    assert (encoder.other_class == "Qwen2Tokenizer") == (model_type == "qwen2")
    for each in takes:
        assert each.from_pretrained(published)(list(WORDS), is_split_into_words=True)["input_ids"] == ids


def spaces_in_pieces(kind: str) -> Tokenizer:
    """A BPE whose pieces may begin with a mark for a space, and that has no byte-level step."""
    marks = ["<unk>", "<pad>", "</s>", "\u2581", *sorted({*"".join(WORDS)}), "\u2581h", "\u2581i"]
    merges = [("\u2581", "h"), ("\u2581", "i")]
    tokenizer = Tokenizer(models.BPE({mark: number for number, mark in enumerate(marks)}, merges, unk_token="<unk>"))
    tokenizer.add_special_tokens(marks[:3])
    if kind == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=kind != "first")
    return tokenizer


@pytest.mark.parametrize("kind", ["gemma", "never", "first", "always"])
def test_words_that_a_tokenizer_would_read_as_one_get_the_spaces_of_running_text(kind: str, tmp_path: Path) -> None:
    backend = spaces_in_pieces(kind)
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    model = gpt2_folder(tmp_path / "model", tokenizer=backend, **special)
    (model / "config.json").write_text(json.dumps({"model_type": "gemma", "max_position_embeddings": 64}))
    encoder = encoder_of(model, tmp_path)
    assert ids_of(encoder) == backend.encode(TEXT).ids
    assert encoder.spaced == (kind in ("gemma", "never")), "others are left as they are"
    (published := tmp_path / "published").mkdir()
    encoder.save(published)
    again = PreTrainedTokenizerFast.from_pretrained(published)
    assert again(list(WORDS), is_split_into_words=True)["input_ids"] == ids_of(encoder)


def test_a_finished_model_reads_words_as_it_was_trained_to(tmp_path: Path) -> None:
    model = gpt2_folder(tmp_path / "model", tokenizer=split_first(normalized=False))
    own = AutoTokenizer.from_pretrained(model)(list(WORDS), is_split_into_words=True)["input_ids"]
    assert ids_of(encoder_of(model, tmp_path, finished=True)) == own != ids_of(encoder_of(model, tmp_path))


def test_a_model_beside_which_another_class_is_made_predicts_what_was_measured(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    words, model = (
        write_words(tmp_path / "words", 60),
        gpt2_folder(tmp_path / "model", tokenizer=split_first(normalized=True)),
    )
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocab_size = byte_level_bpe().get_vocab_size()
    config = Qwen2Config(vocab_size=vocab_size, max_position_embeddings=64, num_key_value_heads=2, **size)
    Qwen2ForTokenClassification(config).save_pretrained(model)
    job = word_job(words, tmp_path / "store", model, run="tagger", training__epochs=1)
    run = train(job, silent())
    evaluate_run(job, run.key, silent())
    values = {"source": "jsonl", "paths": [str(words / "validation.jsonl")], "id_column": "id"}
    made = predict_texts(PredictJob.model_validate({"store": job.store, "model": "tagger", "data": values}), silent())
    store = Path(job.store)
    measured = (store / run.key / "predictions" / "validation.jsonl").read_text()
    assert (store / made.key / "predictions.jsonl").read_text() == measured
    told = (
        "AutoTokenizer.from_pretrained` loads the published tokenizer of such a model as Qwen2Tokenizer, which puts no "
        "space before words, unlike in training"
    )
    assert told in caplog.text
    make_report(Store(job.store), run.key)
    card = (store / run.key / "final" / "README.md").read_text()
    assert "tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)" in card and "AutoTokenizer" not in card
    assert END in (store / run.key / "final" / "tokenizer.json").read_text()


def test_how_to_load_a_tokenizer_is_told_alike_for_all_models_that_share_the_set(tmp_path: Path) -> None:
    """The class that `AutoTokenizer` makes depends on the model's type; this one is right beside any."""
    words = write_words(tmp_path / "words", 60)
    made = []
    for model_type in ("llama", "qwen2"):
        model = gpt2_folder(tmp_path / model_type, tokenizer=byte_level_bpe(), tokenizer_class="Qwen2Tokenizer")
        (model / "config.json").write_text(json.dumps({"model_type": model_type, "max_position_embeddings": 64}))
        job = word_job(words, tmp_path / "store", model)
        made.append(encode(job, silent(), model))
    assert made[0].key == made[1].key and made[1].reused
    assert encoded_details(Store(str(tmp_path / "store")), made[0].key)["tokenizer_class"] == "PreTrainedTokenizerFast"

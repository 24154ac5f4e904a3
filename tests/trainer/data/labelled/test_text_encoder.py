"""Texts to ids: they are those that the model's own tokenizer gives, and those that the published tokenizer will
give.
"""

import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, RobertaConfig, T5Config

from tests.trainer.labelled_data import END, bert_folder, encoded_rows, gpt2_folder, job_of, load, pair_rows, written
from tests.trainer.raw_files import docstrings
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.common.errors import ConfigError, CorpusError, RecordError, TokenizerError
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import tokenizer_paths
from trainer.data.labelled.text_encoder import cut_lengths, load_text_encoder
from trainer.store.storage import Store


@pytest.mark.parametrize("columns", [["a", "b"], ["b"]])
@pytest.mark.parametrize("max_length", [None, 5, 8, 9, 64])
def test_ids_types_and_padding_are_those_of_the_models_tokenizer(
    max_length: int | None, columns: list[str], bert: Path, tmp_path: Path
) -> None:
    rows = pair_rows([*docstrings(40), *(" ".join(["word"] * n) for n in range(1, 40)), "Ünïcödé"])
    found = encoded_rows(tmp_path, rows, bert, max_length=max_length, text_columns=columns)
    tokenizer = load(bert)
    length = max_length or 64
    expected = tokenizer(
        *([row[column] for row in rows] for column in columns), truncation="longest_first", max_length=length
    )
    split = found.splits["train"]
    assert split.lengths.tolist() == [len(ids) for ids in expected["input_ids"]]
    assert max(split.lengths) == length
    for places in ([0], [3, 1, 2], range(len(rows)), np.array([5, 5, 70])):
        batch = split.read(places)
        padded = tokenizer.pad(
            {name: [values[n] for n in places] for name, values in expected.items()}, return_tensors="np"
        )
        assert set(batch) == set(padded)
        for name, values in padded.items():
            assert batch[name].dtype == np.int64
            np.testing.assert_array_equal(batch[name], values)
    whole = tokenizer(*([row[column] for row in rows] for column in columns))
    assert found.details["splits"]["train"]["truncated"] == sum(len(ids) > length for ids in whole["input_ids"])


def test_special_tokens_and_chat_templates_are_kept(gpt2: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(gpt2, tmp_path / "model"))
    original = load(model)
    original.add_special_tokens({"bos_token": "<s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    original.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    original.save_pretrained(model)
    encoder = load_text_encoder(model, job_of(tmp_path, source="csv", train=["any"], max_length=20).data)
    (saved := tmp_path / "saved").mkdir()
    encoder.save(saved)
    kept = load(saved)
    assert kept.special_tokens_map == original.special_tokens_map
    assert kept.chat_template == original.chat_template


def test_the_published_tokenizer_gives_the_ids_that_were_trained_on(bert: Path, gpt2: Path, tmp_path: Path) -> None:
    rows = [*pair_rows(docstrings(30)), {"id": "odd", "a": f"[SEP] {END}", "b": "[MASK]", "label": 0}]
    for model in (bert, gpt2):
        (place := tmp_path / f"of-{model.name}").mkdir()
        found = encoded_rows(place, rows, model, max_length=20)
        job = job_of(place / "store", source="jsonl", train=[str(place / "rows.jsonl")])
        (folder,) = (place / "store" / "encoded").iterdir()
        files = tokenizer_paths(Store(job.store), f"encoded/{folder.name}")
        final = place / "final" / model.name
        final.mkdir(parents=True)
        for path in files:
            shutil.copy(path, final)
        shutil.copy(model / "config.json", final)
        tokenizer = load(final)
        batch = tokenizer(
            [row["a"] for row in rows], [row["b"] for row in rows], truncation=True, padding=True, return_tensors="np"
        )
        ours = found.splits["train"].read(range(len(rows)))
        assert set(batch) == set(ours)
        for name, values in batch.items():
            np.testing.assert_array_equal(ours[name], values)
        assert (tokenizer.pad_token, tokenizer.pad_token_id) == (found.details["pad_token"], found.pad_id)


def test_a_special_tokens_spelling_in_a_text_stays_text(bert: Path, tmp_path: Path) -> None:
    rows = [{"id": "0", "a": "[SEP] one", "b": "[PAD]", "label": 0}, {"id": "1", "a": "two", "b": "three", "label": 1}]
    ids = encoded_rows(tmp_path, rows, bert).splits["train"].read([0])["input_ids"][0].tolist()
    assert (ids.count(3), ids.count(0)) == (2, 0)


@pytest.mark.parametrize("special", [True, False])
def test_markers_in_texts_are_one_token_if_they_are_not_special_and_told_of_else(
    special: bool, bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    model = Path(shutil.copytree(bert, tmp_path / "marked"))
    tokenizer = load(model)
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("[E1]", "[/E1]")], special_tokens=special)
    tokenizer.save_pretrained(model)
    rows = [{"id": str(n), "a": f"the [E1] file [/E1] [SEP] {n}", "label": n % 2} for n in range(3)]
    held = encoded_rows(tmp_path, rows, model, text_columns=["a"]).splits["train"]
    as_one = [token for token in tokenizer.convert_ids_to_tokens(held.read([0])["input_ids"][0]) if "E1" in token]
    says = "small: train: texts spell special tokens of the tokenizer ('[/E1]' in 3 examples, '[E1]' in 3 examples)"
    assert (as_one, says in caplog.text) == (([], True) if special else (["[E1]", "[/E1]"], False))
    assert "SEP" not in caplog.text


def test_an_encoder_that_another_process_is_given_reads_the_same(bert: Path) -> None:
    data = LabelledDataConfig(source="csv", train=["x"], text_columns=["text"])
    encoder = load_text_encoder(bert, data)
    texts = [("one [SEP] two",), ("[CLS][PAD]",)]
    found, expected = (each.encode(texts) for each in (pickle.loads(pickle.dumps(encoder)), encoder))
    assert [each.input_ids.tolist() for each in found] == [each.input_ids.tolist() for each in expected]


@pytest.mark.parametrize(
    "tokenizer_class", ["PreTrainedTokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", None]
)
@pytest.mark.parametrize("processor", [None, "bytes", "start"])
def test_where_nothing_stands_between_a_pair_the_end_token_is_put_there(
    processor: str | None, tokenizer_class: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend = byte_level_bpe()
    end = backend.token_to_id(END)
    if processor == "bytes":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    if processor == "start":
        backend.post_processor = processors.TemplateProcessing(
            single=f"{END} $A", pair=f"{END} $A $B:1", special_tokens=[(END, end)]
        )
    model = gpt2_folder(tmp_path / "gpt2", tokenizer=backend, tokenizer_class=tokenizer_class)
    rows = pair_rows(docstrings(20))
    found = encoded_rows(tmp_path, rows, model, max_length=12)
    plain = load(model)
    start = plain("")["input_ids"]
    assert start == ([end] if processor == "start" and tokenizer_class != "GPTNeoXTokenizer" else [])
    for number, row in enumerate(rows):
        first, second = (backend.encode(row[column], add_special_tokens=False).ids for column in ("a", "b"))
        kept = cut_lengths([len(first), len(second)], 12 - 1 - len(start))
        expected = [*start, *first[: kept[0]], end, *second[: kept[1]]]
        assert found.splits["train"].read([number])["input_ids"][0].tolist() == expected
    # GPT-2 knows no token types: it would look them up as token ids.
    assert set(found.splits["train"].read([0])) == {"input_ids", "attention_mask"}
    assert found.details["pad_token"] == (plain.pad_token or END)
    assert found.pad_id == (end if plain.pad_token is None else plain.pad_token_id)
    said = caplog.messages.count(f"the tokenizer has no padding token: padding with its end token {END!r}")
    assert said == (plain.pad_token is None)
    assert caplog.messages.count(f"the tokenizer puts nothing between the texts of a pair: adding {END!r} there") == 1
    (folder,) = (tmp_path / "store" / "encoded").iterdir()
    shutil.copy(model / "config.json", folder)
    again = load(folder)(rows[0]["a"], rows[0]["b"], truncation=True)
    assert again["input_ids"] == found.splits["train"].read([0])["input_ids"][0].tolist()
    assert set(again) == {"input_ids", "attention_mask"}


def test_texts_are_cut_as_the_library_cuts_them() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    for room in (1, 2, 3, 8, 9):
        backend.enable_truncation(room, strategy="longest_first")
        for one in range(14):
            for two in range(14):
                ids = backend.encode("a " * one, "b " * two).ids
                assert cut_lengths([one, two], room) == [ids.count(0), ids.count(1)]


def test_a_tokenizer_that_keeps_the_end_of_texts_is_followed(tmp_path: Path) -> None:
    model = bert_folder(tmp_path / "bert", settings={"truncation_side": "left"})
    rows = pair_rows(docstrings(20))
    found = encoded_rows(tmp_path, rows, model, max_length=11)
    expected = load(model)([r["a"] for r in rows], [r["b"] for r in rows], truncation="longest_first", max_length=11)
    for number, ids in enumerate(expected["input_ids"]):
        assert found.splits["train"].read([number])["input_ids"][0].tolist() == ids


def length_of(model: Path, tmp_path: Path, **options: Any) -> int:
    return load_text_encoder(model, job_of(tmp_path, source="csv", train=["any"], **options).data).max_length


def test_the_length_is_what_the_tokenizer_says_or_the_models_positions(tmp_path: Path) -> None:
    assert length_of(bert_folder(tmp_path / "positions", positions=48), tmp_path) == 48
    said = bert_folder(tmp_path / "said", positions=48, settings={"model_max_length": 32})
    assert length_of(said, tmp_path) == 32
    assert length_of(said, tmp_path, max_length=40) == 40
    with pytest.raises(ConfigError, match=r"data.max_length is 49, but the model '.*said' has 48 positions"):
        length_of(said, tmp_path, max_length=49)


def test_positions_that_begin_after_the_padding_id_are_not_counted(tmp_path: Path) -> None:
    model = bert_folder(tmp_path / "roberta", settings={"tokenizer_class": "PreTrainedTokenizerFast"})
    RobertaConfig(max_position_embeddings=50, pad_token_id=1, vocab_size=400).save_pretrained(model)
    assert length_of(model, tmp_path) == 48


def test_a_length_that_nothing_says_must_be_given(bert: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "t5"))
    T5Config(vocab_size=400).save_pretrained(model)
    with pytest.raises(ConfigError, match=r"has a maximum length; set data.max_length"):
        length_of(model, tmp_path)
    assert length_of(model, tmp_path, max_length=1000) == 1000


def test_a_length_that_special_tokens_fill_is_an_error(bert: Path, tmp_path: Path) -> None:
    assert length_of(bert, tmp_path, max_length=4) == 4
    with pytest.raises(
        ConfigError, match=r"data.max_length is 3, but the tokenizer of '.*bert' adds 3 tokens of its own"
    ):
        length_of(bert, tmp_path, max_length=3)


def test_a_model_or_a_tokenizer_that_is_not_there_is_an_error(bert: Path, tmp_path: Path) -> None:
    written(tmp_path / "empty" / "a.txt", "")
    with pytest.raises(ConfigError, match=r"model '.*empty' cannot be loaded"):
        length_of(tmp_path / "empty", tmp_path)
    bare = tmp_path / "bare"
    BertConfig().save_pretrained(bare)
    with pytest.raises(TokenizerError, match=r"model '.*bare' has no tokenizer, or an empty one"):
        length_of(bare, tmp_path)
    broken = Path(shutil.copytree(bert, tmp_path / "broken"))
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"the tokenizer of '.*broken' cannot be loaded"):
        length_of(broken, tmp_path)


def test_a_tokenizer_without_the_tokens_that_are_needed_is_an_error(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"eos_token": None, "bos_token": None, "unk_token": None}
    model = gpt2_folder(tmp_path / "gpt2", **bare)
    with pytest.raises(TokenizerError, match="has neither a padding token nor an end token to pad with"):
        length_of(model, tmp_path)
    model = gpt2_folder(tmp_path / "padded", **bare, pad_token=END)
    with pytest.raises(
        TokenizerError, match="puts nothing between the texts of a pair, and has no separator or end token"
    ):
        length_of(model, tmp_path)
    assert length_of(model, tmp_path, text_columns=["a"]) == 64


def test_a_text_of_which_no_token_is_left_is_a_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.labelled.encoding.BLOCK_EXAMPLES", 1)
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, END: 2}, []))
    backend.add_special_tokens([END])
    model = gpt2_folder(tmp_path / "letters", tokenizer=backend, unk_token=None)
    rows = [{"id": f"x{n}", "a": text, "label": n % 2} for n, text in enumerate(["ab", "a", "日本", "b"])]
    says = r"train split: .*rows.jsonl: line 3: the tokenizer gives no tokens for the text \(max_bad_records is 0"
    with pytest.raises(RecordError, match=says):
        encoded_rows(tmp_path, rows, model, text_columns=["a"])
    found = encoded_rows(tmp_path, rows, model, text_columns=["a"], max_bad_records=1)
    good = encoded_rows(tmp_path / "good", [*rows[:2], rows[3]], model, text_columns=["a"])
    for split, held in found.splits.items():
        assert held.ids == good.splits[split].ids == ["x0", "x1", "x3"]
        assert held.labels.tolist() == good.splits[split].labels.tolist()
        assert held.read(range(3))["input_ids"].tolist() == good.splits[split].read(range(3))["input_ids"].tolist()
        told = found.details["splits"][split]
        assert (told["examples"], told["labelled"], told["bad_records"], len(told["skipped"])) == (3, 3, 1, 1)
    none = [{**row, "a": "日本"} for row in rows]
    with pytest.raises(CorpusError, match="the tokenizer gives no tokens for any of its 4 examples"):
        encoded_rows(tmp_path, none, model, text_columns=["a"], max_bad_records=4)


def test_pairs_of_long_texts_take_no_more_than_their_length(bert: Path, tmp_path: Path) -> None:
    long = "the function returns a list of words " * 10_000
    rows = [{"id": str(n), "a": long, "b": long, "label": n} for n in range(2)]
    found = encoded_rows(tmp_path, rows, bert, max_length=16)
    assert found.splits["train"].lengths.tolist() == [16, 16]
    assert found.details["splits"]["train"]["truncated"] == 2

"""Tokenizers: trained reproducibly, named by their options, taken from files, and refused readably."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.trainer.made import find_tokenizer, prepare_tokenizer
from tests.trainer.raw_files import docstrings, sources
from tests.trainer.small_tokenizers import byte_level_bpe, saved, unigram
from trainer.common.errors import TokenizerError
from trainer.common.progress import Progress, silent
from trainer.config.corpora import DataConfig
from trainer.config.jobs import PrepareJob
from trainer.data import tokenizer_training
from trainer.data.tokenizer_training import preview_tokenizer
from trainer.models.taken_tokenizer import END_OF_TEXT, TOKENIZER_CONFIG
from trainer.models.tokenizer import TOKENIZER_FILE, load_tokenizer, tokenizer_files
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

TRAINED = {"vocab_size": 400}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of raw text."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number, document in enumerate(docstrings(60)):
        (folder / f"{number:03}.txt").write_text(document, encoding="utf-8")
    return folder


def data_of(text: Path, tokenizer: dict[str, Any]) -> DataConfig:
    corpora = [{"name": "docs", "paths": [f"{text}/*.txt"]}]
    return DataConfig.model_validate({"corpora": corpora, "tokenizer": tokenizer})


def make(store: Store, data: DataConfig) -> ArtifactRef:
    """Publish the tokenizer of a configuration."""
    return prepare_tokenizer(PrepareJob(store=store.url, data=data), silent())


def find(store: Store, data: DataConfig) -> ArtifactRef | None:
    return find_tokenizer(PrepareJob(store=store.url, data=data))


def files_of(store: Store, ref: ArtifactRef) -> list[bytes]:
    return [path.read_bytes() for path in tokenizer_files(store, ref.key)]


def test_training_twice_gives_the_same_bytes(text: Path, tmp_path: Path) -> None:
    one, two = Store(str(tmp_path / "one")), Store(str(tmp_path / "two"))
    data = data_of(text, TRAINED)
    first, second = make(one, data), make(two, data)
    assert first == second
    assert files_of(one, first) == files_of(two, second)


def test_a_long_line_is_given_to_the_trainer_in_short_blocks_that_train_the_same_tokenizer(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in sorted(text.iterdir()))
    for path in text.iterdir():
        path.unlink()
    (text / "a.txt").write_text(line, encoding="utf-8")
    made = []
    for name, longest in (("whole", 2**30), ("short", 499)):
        monkeypatch.setattr(tokenizer_training, "LONGEST_BLOCK", longest)
        store = Store(str(tmp_path / name))
        made.append(files_of(store, make(store, data_of(text, TRAINED))))
    assert len(line.encode()) > 10 * 499 and made[0] == made[1]


def test_another_file_at_the_same_place_is_another_tokenizer(text: Path, empty_store: Store, tmp_path: Path) -> None:
    path = saved(byte_level_bpe(500), tmp_path / TOKENIZER_FILE)
    data = data_of(text, {"path": str(path)})
    make(empty_store, data)
    saved(byte_level_bpe(400), path)
    assert find(empty_store, data) is None


def test_a_text_without_spaces_is_cut_between_characters() -> None:
    text = "aß日𝄞" * 9000
    blocks = list(tokenizer_training._short_blocks(text.encode()))
    assert "".join(blocks) == text and len(blocks) == 2
    assert max(len(block.encode()) for block in blocks) <= tokenizer_training.LONGEST_BLOCK


def test_a_trained_tokenizer_has_its_size_its_end_token_and_every_byte(text: Path, empty_store: Store) -> None:
    info = load_tokenizer(empty_store, make(empty_store, data_of(text, TRAINED)).key)
    tokenizer = Tokenizer.from_str(info.json)
    assert info.vocab_size == tokenizer.get_vocab_size() == 400
    assert tokenizer.id_to_token(info.eos_id) == END_OF_TEXT
    anything = bytes(range(32, 127)).decode() + "\x00\x01\n\t éßЖ日𝄞"
    assert tokenizer.decode(tokenizer.encode(anything).ids) == anything


def test_a_trained_tokenizer_begins_ends_and_pads_texts_and_knows_no_unknown_token(
    text: Path, empty_store: Store
) -> None:
    made = make(empty_store, data_of(text, TRAINED))
    tokenizer = AutoTokenizer.from_pretrained(empty_store.fetch(f"{made.key}/{TOKENIZER_FILE}").parent)
    assert tokenizer.special_tokens_map == dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    assert tokenizer.convert_tokens_to_ids("<|misspelt|>") is None
    padded = tokenizer(["one", "two words here"], padding=True, padding_side="left")
    assert len({len(ids) for ids in padded["input_ids"]}) == 1
    assert padded["attention_mask"][0][0] == 0


def test_fewer_tokens_than_were_asked_for_are_refused_with_how_many_there_are(text: Path, empty_store: Store) -> None:
    (path,) = sorted(text.iterdir())[:1]
    path.write_text("aaaa bbbb " * 9)
    data = data_of(path.parent, {"vocab_size": 400})
    data = data.model_copy(update={"corpora": [data.corpora[0].model_copy(update={"paths": [str(path)]})]})
    with pytest.raises(TokenizerError, match=r"vocab_size is 400, but the text gives only (\d+) tokens") as caught:
        make(empty_store, data)
    assert empty_store.names("tokenizers") == []
    most = int(re.findall(r"set it to (\d+) or less, or add text$", str(caught.value))[0])
    fitting = data.model_copy(update={"tokenizer": data.tokenizer.model_copy(update={"vocab_size": most})})
    assert load_tokenizer(empty_store, make(empty_store, fitting).key).vocab_size == most


def test_more_text_is_read_for_more_tokens_if_only_a_sample_was(text: Path, empty_store: Store) -> None:
    with pytest.raises(TokenizerError, match=r"or less, or increase data.tokenizer.sample_bytes \(20 bytes\)$"):
        make(empty_store, data_of(text, {"vocab_size": 400, "sample_bytes": 20}))


def test_a_trained_tokenizer_keeps_its_name_when_raw_files_change(text: Path, empty_store: Store) -> None:
    data = data_of(text, TRAINED)
    made = make(empty_store, data)
    (text / "000.txt").write_text("something else")
    (text / "new.txt").write_text("and something new")
    found = find(empty_store, data)
    assert found is not None
    assert found.key == made.key


@pytest.mark.parametrize("change", [{"vocab_size": 401}, {"name": "other"}, {"sample_bytes": 10_000}])
def test_other_options_name_another_tokenizer(change: dict[str, Any], text: Path, empty_store: Store) -> None:
    made = make(empty_store, data_of(text, TRAINED))
    assert find(empty_store, data_of(text, {**TRAINED, **change})) is None
    assert make(empty_store, data_of(text, {**TRAINED, **change})).key != made.key


def test_the_names_and_formats_of_the_corpora_are_part_of_the_name_their_budgets_are_not(
    text: Path, empty_store: Store
) -> None:
    data = data_of(text, TRAINED)
    made = make(empty_store, data)
    (corpus,) = data.corpora
    for change, same in (({"name": "other"}, False), ({"format": "lines"}, False), ({"max_bad_records": 3}, True)):
        changed = data.model_copy(update={"corpora": [corpus.model_copy(update=change)]})
        found = find(empty_store, changed)
        assert (found is not None and found.key == made.key) is same


def test_the_engine_is_no_part_of_the_tokenizers_name(text: Path, empty_store: Store) -> None:
    make(empty_store, data_of(text, TRAINED))
    assert find(empty_store, data_of(text, {**TRAINED, "engine": "tokenizers"})) is not None


def test_the_sample_takes_its_share_from_every_corpus(text: Path, empty_store: Store) -> None:
    pq.write_table(pa.table({"text": list(sources().values())}), text / "code.parquet", row_group_size=1)
    corpora = [
        {"name": "docs", "paths": [f"{text}/*.txt"]},
        {"name": "code", "paths": [f"{text}/*.parquet"], "format": "parquet"},
    ]
    values = {"corpora": corpora, "tokenizer": {**TRAINED, "sample_bytes": 60_000}, "shards": {"piece_bytes": 1024}}
    data = DataConfig.model_validate(values)
    taken: list[int] = []
    progress = Progress(lambda update: taken.append(update.done), 0.0)
    made = prepare_tokenizer(PrepareJob(store=empty_store.url, data=data), progress)
    read = Tokenizer.from_str(load_tokenizer(empty_store, made.key).json)
    assert taken[-1] >= 60_000
    assert {"Ġdef", "Ġself"} <= read.get_vocab().keys()


def test_a_tokenizer_is_taken_from_a_file_or_from_its_folder(text: Path, empty_store: Store, tmp_path: Path) -> None:
    path = saved(byte_level_bpe(), tmp_path / "given" / TOKENIZER_FILE)
    from_file = make(empty_store, data_of(text, {"path": str(path)}))
    from_folder = make(empty_store, data_of(text, {"path": str(path.parent)}))
    assert from_file.key == from_folder.key
    info = load_tokenizer(empty_store, from_file.key)
    assert json.loads(info.json) == json.loads(path.read_text(encoding="utf-8"))
    assert info.eos_id == byte_level_bpe().token_to_id(END_OF_TEXT)
    assert preview_tokenizer(empty_store, data_of(text, {"path": str(path)})).max_id == info.max_id == 499


def test_the_end_token_is_the_one_configured_else_named_beside_the_file(
    text: Path, empty_store: Store, tmp_path: Path
) -> None:
    tokenizer = unigram()
    path = saved(tokenizer, tmp_path / "given" / TOKENIZER_FILE)
    beside = path.with_name(TOKENIZER_CONFIG)
    ids = []
    for named, options in [("</s>", {}), ({"content": "<unk>"}, {}), ("</s>", {"eos_token": "<unk>"})]:
        beside.write_text(json.dumps({"eos_token": named}))
        data = data_of(text, {"path": str(path), **options})
        assert find(empty_store, data) is None, "another end token is another tokenizer"
        ids.append(load_tokenizer(empty_store, make(empty_store, data).key).eos_id)
    assert ids == [tokenizer.token_to_id(token) for token in ("</s>", "<unk>", "<unk>")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [({}, "has no end-of-document token"), ({"eos_token": "<end>"}, "has no token '<end>'")],
)
def test_a_tokenizer_without_an_end_token_is_refused(
    options: dict[str, str], problem: str, text: Path, empty_store: Store, tmp_path: Path
) -> None:
    path = saved(unigram(), tmp_path / TOKENIZER_FILE)
    data = data_of(text, {"path": str(path), **options})
    with pytest.raises(TokenizerError, match=f"{problem}; set data.tokenizer.eos_token to one of its tokens"):
        make(empty_store, data)
    with pytest.raises(TokenizerError, match=problem):
        preview_tokenizer(empty_store, data)
    assert empty_store.names("tokenizers") == []


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": {"type": "Unheard"}}'])
def test_a_broken_tokenizer_file_is_refused_by_its_path(
    content: str, text: Path, empty_store: Store, tmp_path: Path
) -> None:
    (tmp_path / TOKENIZER_FILE).write_text(content)
    with pytest.raises(TokenizerError, match=rf"{TOKENIZER_FILE}' cannot be loaded"):
        make(empty_store, data_of(text, {"path": str(tmp_path / TOKENIZER_FILE)}))
    assert empty_store.names("tokenizers") == []


def test_loading_a_tokenizer_that_was_not_published_says_what_to_do(empty_store: Store) -> None:
    for store in (empty_store, Store("memory://nothing-here")):
        with pytest.raises(TokenizerError, match="holds no published tokenizer; prepare the data first"):
            load_tokenizer(store, "tokenizers/none")

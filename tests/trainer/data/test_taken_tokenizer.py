"""A tokenizer that is taken gives in a model's folder what the original gives: ids, special tokens, templates,
length.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from tests import ROOT
from tests.disks import fill
from tests.hub import serve_model
from tests.trainer.made import prepare_tokenizer
from tests.trainer.raw_files import docstrings
from tests.trainer.small_tokenizers import END_OF_TEXT, byte_level_bpe, random_texts, saved, unigram, word_piece
from trainer.common.errors import ConfigError, StorageError, TokenizerError
from trainer.common.progress import silent
from trainer.config.corpora import DataConfig
from trainer.config.jobs import PrepareJob
from trainer.data.tokenizer_training import tokenizer_recipe
from trainer.models.taken_tokenizer import TOKENIZER_CONFIG, find_other_class, take_tokenizer
from trainer.models.tokenizer import TOKENIZER_FILE, load_tokenizer, tokenizer_files
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

TEXTS = [*docstrings(20), *random_texts(100, seed=3), " leading", "", "don't  do\tthat\n\n", "<s>a</s>"]
TEMPLATE = "{% for message in messages %}{{ bos_token }}{{ message['content'] }}{{ eos_token }}{% endfor %}"


def plain(folder: Path) -> None:
    """A tokenizer with special tokens of its own, padding on the left, a length and a chat template."""
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>", "<tool>"])
    begins = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[begins]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **names, extra_special_tokens=["<tool>"], model_max_length=77, padding_side="left",
        truncation_side="left", chat_template=TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip


def with_several_templates(folder: Path) -> None:
    """Without a padding token, and with two chat templates, one of them in a folder below."""
    templates = {"default": TEMPLATE, "tool_use": "{{ tools }}"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=unigram(), eos_token="</s>", unk_token="<unk>", chat_template=templates
    )
    tokenizer.save_pretrained(folder)


def old_files(folder: Path) -> None:
    """As they were written once: special tokens and an added one in files of their own."""
    saved(byte_level_bpe(), folder / TOKENIZER_FILE)
    (folder / TOKENIZER_CONFIG).write_text(json.dumps({"model_max_length": 55, "chat_template": TEMPLATE}))
    tokens = {"eos_token": END_OF_TEXT, "bos_token": {"content": "<s>", "lstrip": False, "normalized": False}}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "added_tokens.json").write_text(json.dumps({"<s>": 500}))


def of_a_class(folder: Path) -> None:
    """A GPT-2's, whose class cuts text in its own way, without a tokenizer.json: vocabulary and merges."""
    model = json.loads(byte_level_bpe().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / TOKENIZER_CONFIG).write_text(
        json.dumps({"tokenizer_class": GPT2Tokenizer.__name__, "model_max_length": 64})
    )


def bert(folder: Path) -> None:
    """A BERT's, with a frame around texts, and an end token to be named."""
    vocabulary = word_piece().get_vocab()
    for name in ("[CLS]", "[MASK]", "[PAD]"):
        vocabulary[name] = len(vocabulary)
    BertTokenizer(vocab=vocabulary, model_max_length=32).save_pretrained(folder)


KINDS: list[tuple[Callable[[Path], None], str | None]] = [
    (plain, None), (plain, END_OF_TEXT), (with_several_templates, None), (old_files, None), (of_a_class, None),
    (bert, "[SEP]"),
]  # fmt: skip


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "qwen3"])
@pytest.mark.parametrize(("write", "end"), KINDS)
def test_a_taken_tokenizer_gives_beside_any_model_what_the_original_gives(
    write: Callable[[Path], None], end: str | None, family: str, tmp_path: Path
) -> None:
    (given := tmp_path / "given").mkdir()
    write(given)
    (final := tmp_path / "final").mkdir()
    original = AutoTokenizer.from_pretrained(given)
    eos = take_tokenizer(str(given), end, final)
    assert eos == (end or original.eos_token)
    (final / "config.json").write_text(json.dumps({"model_type": family}))
    kept = AutoTokenizer.from_pretrained(final)
    ids = original(TEXTS, verbose=False)["input_ids"]
    assert kept(TEXTS, verbose=False)["input_ids"] == ids
    assert [kept.decode(each) for each in ids] == [original.decode(each) for each in ids]
    for name in ("chat_template", "model_max_length", "padding_side", "truncation_side", "model_input_names"):
        assert getattr(kept, name) == getattr(original, name), name
    expected = {**original.special_tokens_map, "eos_token": eos, "pad_token": original.pad_token or eos}
    assert kept.special_tokens_map == expected
    assert {*kept.all_special_tokens, original.eos_token} == {*original.all_special_tokens, original.eos_token, eos}
    assert kept.get_vocab() == original.get_vocab()
    padded = kept(TEXTS[:5], padding=True, verbose=False)
    assert len({len(each) for each in padded["input_ids"]}) == 1
    if isinstance(original.chat_template, str) and end is None:
        messages = [{"role": "user", "content": "Hello"}]
        assert kept.apply_chat_template(messages, tokenize=False) == original.apply_chat_template(
            messages, tokenize=False
        )


def test_what_need_not_change_is_kept_as_it_is(tmp_path: Path) -> None:
    (given := tmp_path / "given").mkdir()
    old_files(given)
    of_a_class(given)
    (given / TOKENIZER_FILE).write_text(json.dumps(json.loads((given / TOKENIZER_FILE).read_text()), indent=1))
    (given / TOKENIZER_CONFIG).write_text(json.dumps({"model_max_length": 55, "something_of_its_own": [1, 2]}))
    (final := tmp_path / "final").mkdir()
    take_tokenizer(str(given), None, final)
    for name in ("vocab.json", "merges.txt"):
        assert (final / name).read_bytes() == (given / name).read_bytes()
    settings = json.loads((final / TOKENIZER_CONFIG).read_text())
    assert settings["something_of_its_own"] == [1, 2]
    assert str(tmp_path) not in (final / TOKENIZER_CONFIG).read_text()


def test_a_tokenizer_json_that_says_all_of_it_keeps_its_bytes(tmp_path: Path) -> None:
    path = saved(byte_level_bpe(), tmp_path / "given" / "my.json")
    (final := tmp_path / "final").mkdir()
    assert take_tokenizer(str(path), None, final) == END_OF_TEXT
    assert (final / TOKENIZER_FILE).read_bytes() == path.read_bytes()
    assert AutoTokenizer.from_pretrained(final).pad_token == END_OF_TEXT


def data_of(path: Path | str) -> DataConfig:
    corpora = [{"name": "docs", "paths": ["unread"]}]
    return DataConfig.model_validate({"corpora": corpora, "tokenizer": {"path": str(path)}})


def name_of(path: Path | str) -> str:
    return fingerprint(tokenizer_recipe(Store("memory://none"), data_of(path)))


def test_every_file_that_is_read_is_part_of_the_name(tmp_path: Path) -> None:
    plain(tmp_path)
    names = {name_of(tmp_path)}
    for name in ("chat_template.jinja", TOKENIZER_CONFIG, TOKENIZER_FILE):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
        names.add(name_of(tmp_path))
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert len({*names, name_of(tmp_path)}) == 5


def test_a_published_tokenizer_has_all_its_files(tmp_path: Path, empty_store: Store) -> None:
    of_a_class(tmp_path)
    ref = prepare_tokenizer(PrepareJob(store=empty_store.url, data=data_of(tmp_path)), silent())
    assert {path.name for path in tokenizer_files(empty_store, ref.key)} == {
        TOKENIZER_FILE, TOKENIZER_CONFIG, "vocab.json", "merges.txt",
    }  # fmt: skip
    info = load_tokenizer(empty_store, ref.key)
    assert Tokenizer.from_str(info.json).id_to_token(info.eos_id) == END_OF_TEXT


def test_a_model_type_whose_own_class_would_cut_text_otherwise_is_found() -> None:
    trained = byte_level_bpe().to_str()
    assert [find_other_class(trained, family) for family in ("gpt2", "llama", "mamba", "qwen3")] == [None] * 4
    assert find_other_class(trained, "qwen2") == "Qwen2Tokenizer"


def test_a_class_from_a_repository_is_refused(tmp_path: Path) -> None:
    plain(tmp_path)
    settings: dict[str, Any] = json.loads((tmp_path / TOKENIZER_CONFIG).read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (tmp_path / TOKENIZER_CONFIG).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="has an auto_map"):
        name_and_take(tmp_path)
    with pytest.raises(TokenizerError, match="it needs code of its own repository, which headrace never runs"):
        name_and_take(tmp_path / TOKENIZER_FILE)


def name_and_take(given: Path) -> None:
    (final := given.parent / f"final-{given.name}").mkdir()
    take_tokenizer(str(given), None, final)


def test_a_full_disk_of_temporary_files_does_not_mean_a_bad_tokenizer(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path / "a")
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    fill(small_disk)
    with pytest.raises(StorageError, match=f"cannot write temporary files to {small_disk}: No space") as full:
        take_tokenizer(str(tmp_path / "a"), None, tmp_path)
    assert full.value.transient


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(TokenizerError, match=r"cannot be loaded: it has neither tokenizer\.json nor a vocabulary"):
        name_of(tmp_path)


@pytest.mark.deep
def test_a_name_of_the_hub_is_named_by_its_files(tmp_path: Path) -> None:
    (given := tmp_path / "given").mkdir()
    plain(given)
    look = (
        "from tests.trainer.data.test_taken_tokenizer import name_of, plain, take_tokenizer; "
        "from pathlib import Path; import sys;"
        "print(name_of(sys.argv[1]), take_tokenizer(sys.argv[1], None, "
        "Path(sys.argv[2])))"
    )
    (final := tmp_path / "final").mkdir()
    with serve_model(given, "someone/words", "1" * 40) as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub")}
        command = [sys.executable, "-c", look, "someone/words", str(final)]
        said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [name_of(given), "</s>"]
    assert AutoTokenizer.from_pretrained(final).chat_template == TEMPLATE

"""Weights that are missing, cut short or damaged are found by their headers, before anything is loaded."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoTokenizer

from trainer.common.errors import ConfigError, PipelineError
from trainer.models.causal import load_pretrained
from trainer.models.pretrained import load_config, load_tokenizer
from trainer.models.tensor_rows import Tensors
from trainer.models.weights import INDEX, WEIGHTS, check_weights

TENSORS = {f"layer.{number}": np.arange(64, dtype=np.float32).reshape(8, 8) for number in range(4)}
PARTS = {f"model-0000{part}-of-00002.safetensors": list(TENSORS)[2 * part - 2 : 2 * part] for part in (1, 2)}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / WEIGHTS)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for file, names in PARTS.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / file)
    placed = {name: file for file, names in PARTS.items() for name in names}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1024}, "weight_map": placed}))
    return tmp_path


def problem_of(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_weights(str(folder))
    return str(caught.value)


def test_whole_weights_pass(single: Path, sharded: Path) -> None:
    check_weights(str(single))
    (single / WEIGHTS).unlink()
    check_weights(str(sharded))


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda data: data[:-40], "bytes, where its header describes"),
    "longer": (lambda data: data + bytes(8), "bytes, where its header describes"),
    "cut in its header": (lambda data: data[:60], "a header of [0-9,]+ bytes in a file of 60"),
    "empty": (lambda data: b"", "a header of 0 bytes in a file of 0"),
    "another file": (
        lambda data: b"version https://git-lfs.github.com/spec/v1\n" + b"oid sha256:0\n",
        "a header of [0-9,]+ bytes",
    ),
    "not JSON": (lambda data: data[:8] + b"x" + data[9:], "Expecting value"),
    "a list": (lambda data: (2).to_bytes(8, "little") + b"[]", "a header that is list, not an object"),
    "no offsets": (lambda data: (8).to_bytes(8, "little") + b'{"a":{}}', "a header that does not describe tensors"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_found_by_its_header(what: str, single: Path) -> None:
    damage, message = DAMAGE[what]
    (single / WEIGHTS).write_bytes(damage((single / WEIGHTS).read_bytes()))
    with pytest.raises(
        ConfigError, match=rf"model.safetensors is missing or damaged \(.*{message}.*\); copy or download it"
    ):
        check_weights(str(single))


def test_of_a_sharded_model_every_file_is_looked_at(sharded: Path) -> None:
    last = sharded / list(PARTS)[1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    assert f"{last.name} is missing or damaged" in problem_of(sharded)
    last.unlink()
    assert f"{last.name} is missing or damaged" in problem_of(sharded)
    save_file({"layer.2": TENSORS["layer.2"]}, last)
    assert f"{last.name} has no 'layer.3', which model.safetensors.index.json lists for it" in problem_of(sharded)
    last.write_bytes(whole)
    check_weights(str(sharded))


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": []}', "{", "\xff", "[" * 100_000])
def test_a_damaged_index_is_named(index: str, sharded: Path) -> None:
    (sharded / INDEX).write_text(index, encoding="latin-1")
    assert f"{INDEX} is damaged" in problem_of(sharded)


def test_a_folder_without_weights_says_what_was_expected(tmp_path: Path) -> None:
    assert f"has no weights: expected {WEIGHTS} or {INDEX}" in problem_of(tmp_path)


@pytest.mark.parametrize(("number", "passing"), [(errno.ESTALE, True), (errno.EACCES, False)])
def test_a_disk_that_is_away_while_a_model_is_loaded_is_no_damaged_model(
    number: int, passing: bool, single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)

    def require_told(load: Callable[[], Any]) -> None:
        with pytest.raises(PipelineError, match=os.strerror(number)) as failure:
            load()
        assert failure.value.transient is passing

    require_told(lambda: load_config(str(single)))
    require_told(lambda: load_tokenizer(str(single)))
    require_told(lambda: load_pretrained(SimpleNamespace(from_pretrained=refuse), str(single)))
    monkeypatch.setattr("trainer.models.tensor_files.open", refuse, raising=False)
    require_told(lambda: check_weights(str(single)))
    require_told(lambda: Tensors([single / WEIGHTS]))

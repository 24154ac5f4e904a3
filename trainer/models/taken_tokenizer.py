"""A tokenizer that is taken: its files, wherever they are, and what is kept of them so that a model's folder gives the
same.

The class that a tokenizer_config.json names is free to build the tokenizer by itself, and which class is asked depends
on the model beside it. What is kept names the one class that takes tokenizer.json as it is, and says outright what the
other one had from its own code; all that the original gives is compared with what is kept.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from trainer.common.errors import TokenizerError, brief
from trainer.models.pretrained import NO_NAME, check_settings, hub_reason, is_hub_name, revision_of
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.store.private_folders import followed

TOKENIZER_CONFIG = "tokenizer_config.json"
PLAIN_CLASS = "PreTrainedTokenizerFast"
END_OF_TEXT = "<|endoftext|>"

SETTINGS = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files about a tokenizer, which transformers writes anew as one; named chat templates are in a folder of their own."""
TEMPLATES = "additional_chat_templates"
VOCABULARIES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""The vocabulary in older forms, which other programs read: kept as they are."""
MODEL_CONFIG = "config.json"
"""Read, as its `model_type` decides about the class, and not kept."""

PASSING = ("is_local", "local_files_only")
"""What transformers writes of where it has just read the files."""

MOST_TOLD = 12
"""Tokens that a message lists."""

STATED = ("model_input_names", "padding_side", "truncation_side", "model_max_length", "clean_up_tokenization_spaces")
"""What a class may have from its own code."""

PROBES = (
    "The quick brown fox jumps over the lazy dog; it's 12,345.67 km, isn't it?\n\n  And\tthen  some   spaces. ",
    "def f(x: int) -> str:\n    return f'{x!r}' * 2  # comment\n\n\nclass A_b2(C):\r\n\t\"\"\"Doc.\"\"\"\n",
    "Größe, naïve café, Ελλάδα, Россия, हिन्दी, 日本語の文字, 한국어, العربية, עברית, 𝄞 👩‍💻 \u00a0\u200b e\u0301",
    "ALL CAPS camelCase snake_case 2024-01-02T03:04:05Z https://example.org/a?b=c&d=%20 <|endoftext|></s><s>[CLS]",
    " leading", "", "\n", "a",
)  # fmt: skip


def find_files(path: str) -> dict[str, Path]:
    """The files of a tokenizer, by name: of a tokenizer.json and what lies beside it, a folder, or a pretrained name.

    Raises `TokenizerError` if there are none.
    """
    place = Path(path)
    if place.is_file():
        beside = _files_in(
            place.parent, (*SETTINGS, MODEL_CONFIG, *(VOCABULARIES if place.name == TOKENIZER_FILE else ()))
        )
        return {TOKENIZER_FILE: place, **beside}
    folder = place if place.is_dir() else _fetch(path)
    found = _files_in(folder, (TOKENIZER_FILE, *SETTINGS, MODEL_CONFIG, *VOCABULARIES))
    if not found.keys() & {TOKENIZER_FILE, *VOCABULARIES}:
        raise TokenizerError(f"tokenizer {path!r} cannot be loaded: neither {TOKENIZER_FILE} nor a vocabulary is there")
    return found


def take_tokenizer(path: str, eos_token: str | None, folder: Path) -> str:
    """Write what is kept of a tokenizer to a folder; returns its end-of-document token.

    The end token is the given one, else the tokenizer's own, and pads where there is no padding token. Raises
    `TokenizerError` if the tokenizer cannot be loaded, names no end token, or would not be the same from that folder.
    """
    files = find_files(path)
    with _loaded(path, files) as tokenizer:
        eos: str | None = eos_token or tokenizer.eos_token
        if eos is None and tokenizer.backend_tokenizer.token_to_id(END_OF_TEXT) is not None:
            eos = END_OF_TEXT
        if eos is None or tokenizer.backend_tokenizer.token_to_id(eos) is None:
            found = "names no end-of-document token" if eos is None else f"has no token {eos!r}"
            raise TokenizerError(
                f"tokenizer {path!r} {found}; set data.tokenizer.eos_token to one of its tokens{_candidates(tokenizer)}"
            )
        tokenizer.eos_token = eos
        if tokenizer.pad_token is None:
            tokenizer.pad_token = eos
        save_flat(tokenizer, folder, **{name: getattr(tokenizer, name) for name in STATED}, tokenizer_class=PLAIN_CLASS)
        for name in files.keys() & set(VOCABULARIES):
            shutil.copyfile(files[name], folder / name)
        _keep_bytes(tokenizer, files.get(TOKENIZER_FILE), folder)
        if differences := _differences(tokenizer, folder):
            raise TokenizerError(
                f"tokenizer {path!r} cannot be kept: as {PLAIN_CLASS} it differs in {', '.join(differences)}; save it "
                "with its own library as a tokenizer.json that says all of it"
            )
    return eos


def _candidates(tokenizer: Any) -> str:
    """Which tokens could end documents: those that no text becomes, each as it is written in a configuration."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    quoted = [json.dumps(token, ensure_ascii=False) for token in special[:MOST_TOLD]]
    more = f" and {len(special) - MOST_TOLD} more" if len(special) > MOST_TOLD else ""
    return f": its special ones are {', '.join(quoted)}{more}" if special else ", of which none is special"


def read_vocabulary(path: str) -> dict[str, int]:
    """Every token of a tokenizer and its id. Raises `TokenizerError` if there is no tokenizer, or it cannot be
    loaded.
    """
    with _loaded(path, find_files(path)) as tokenizer:
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        return vocabulary


def find_other_class(tokenizer_json: str, model_type: str) -> str | None:
    """The class that `AutoTokenizer` makes of a tokenizer beside a model of some type, if it gives other ids; else
    None.

    For some types it takes a class of theirs, whatever tokenizer_config.json says.
    """
    from transformers import AutoTokenizer

    with TemporaryDirectory(prefix="headrace-") as folder:
        Path(folder, TOKENIZER_FILE).write_text(tokenizer_json, encoding="utf-8")
        Path(folder, TOKENIZER_CONFIG).write_text(json.dumps({"tokenizer_class": PLAIN_CLASS}))
        Path(folder, MODEL_CONFIG).write_text(json.dumps({"model_type": model_type}))
        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # whatever a class has against a tokenizer that is not its own
            return f"nothing ({error})"
    expected = [
        each.ids for each in Tokenizer.from_str(tokenizer_json).encode_batch(list(PROBES), add_special_tokens=False)
    ]
    same = [found(text, add_special_tokens=False, verbose=False)["input_ids"] for text in PROBES] == expected
    return None if same else type(found).__name__


def save_flat(tokenizer: Any, folder: Path, **settings: Any) -> None:
    """Write a tokenizer's files side by side, several chat templates too, with settings of tokenizer_config.json
    replaced.
    """
    with followed(folder) as place:
        tokenizer.save_pretrained(str(place), save_jinja_files=not isinstance(tokenizer.chat_template, dict))
    if settings:
        path = folder / TOKENIZER_CONFIG
        values = {**json.loads(path.read_text(encoding="utf-8")), **settings}
        values = {name: value for name, value in values.items() if name not in PASSING}
        path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@lru_cache(maxsize=16)
def _fetch(name: str) -> Path:
    """The folder of a pretrained name's tokenizer files in the local cache, fetched once a process."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if not is_hub_name(name):
        raise TokenizerError(f"tokenizer {name!r} cannot be loaded: {NO_NAME}")
    patterns = [TOKENIZER_FILE, *SETTINGS, MODEL_CONFIG, *VOCABULARIES, f"{TEMPLATES}/*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, **revision_of(name)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise TokenizerError(
            f"tokenizer {name!r} cannot be loaded: it is no file or folder here, and the Hugging Face hub does not "
            f"give it: {hub_reason(error)}"
        ) from error


def _files_in(folder: Path, names: tuple[str, ...]) -> dict[str, Path]:
    templates = {f"{TEMPLATES}/{path.name}": path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    return {name: folder / name for name in names if (folder / name).is_file()} | templates


@contextmanager
def _loaded(path: str, files: Mapping[str, Path]) -> Iterator[Any]:
    """The tokenizer of some files, as transformers loads it from them and nothing else; they stay for the block."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not Path(path).is_file():
        check_settings(path)
    with TemporaryDirectory(prefix="headrace-") as folder:
        for name, file in files.items():
            (place := Path(folder, name)).parent.mkdir(exist_ok=True)
            place.symlink_to(file.resolve())
        try:
            _spell_out(Path(folder, TOKENIZER_CONFIG))
            if files.keys() & {TOKENIZER_CONFIG, MODEL_CONFIG}:
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            else:
                tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
            own = (
                "it is made by code of its own repository, which is not run; "
                if "trust_remote_code" in str(error)
                else ""
            )
            raise TokenizerError(
                f"tokenizer {path!r} cannot be loaded: {own}{brief(error).replace(folder, path)}"
            ) from error
        if not tokenizer.is_fast:
            raise TokenizerError(
                f"tokenizer {path!r} is none of the `tokenizers` library; convert it to a tokenizer.json"
            )
        yield tokenizer


def _spell_out(config: Path) -> None:
    """Say of tokens that are given as objects, without saying of which kind, that they are tokens: older files do
    not.
    """
    if not config.exists():
        return
    values = json.loads(config.read_text(encoding="utf-8"))
    tokens = {name: value for name, value in values.items() if name.endswith("_token") and isinstance(value, dict)}
    config.unlink()
    config.write_text(
        json.dumps({**values, **{name: {"__type": "AddedToken", **each} for name, each in tokens.items()}})
    )


def _keep_bytes(tokenizer: Any, original: Path | None, folder: Path) -> None:
    """Put the original tokenizer.json in place of the one written anew, if it gives the same."""
    if original is None:
        return
    written = folder / TOKENIZER_FILE
    anew = written.read_bytes()
    shutil.copyfile(original, written)
    if _differences(tokenizer, folder):
        written.write_bytes(anew)


def _differences(tokenizer: Any, folder: Path) -> list[str]:
    """In what the tokenizer of a folder differs from this one."""
    from transformers import PreTrainedTokenizerFast

    kept = PreTrainedTokenizerFast.from_pretrained(str(folder))
    compared = ("special_tokens_map", "all_special_tokens", "chat_template", *STATED)
    differences = [name for name in compared if getattr(kept, name) != getattr(tokenizer, name)]
    if kept.get_vocab() != tokenizer.get_vocab():
        differences.append("vocabulary")
    first, second = ([each(text, verbose=False)["input_ids"] for text in PROBES] for each in (kept, tokenizer))
    if first != second:
        differences.append("ids")
    return differences

"""Copy an existing tokenizer so that `AutoTokenizer` loads it unchanged from a model's folder.

The class in tokenizer_config.json may build the tokenizer with its own code, and the model's type in the same folder
may select another class. So the copy specifies the class that uses tokenizer.json as it is, with all values that the
original class has from its code. The copy is then compared with the original.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from trainer.common.display import some
from trainer.common.errors import ArtifactError, TokenizerError, brief
from trainer.common.temporary import temporary_folder
from trainer.common.transient import FULL, number_of
from trainer.models.hub import NO_NAME, fetch_from_hub, is_hub_name
from trainer.models.pretrained import TEMPLATES, check_settings, find_model, is_named_own, locate
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.store.artifact_files import require_intact
from trainer.store.manifest import Manifest
from trainer.store.private_folders import followed
from trainer.store.storage import Store

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
"""Files with a tokenizer's settings, which transformers rewrites as one; named chat templates are in `TEMPLATES`."""
VOCABULARIES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Older vocabulary formats that other programs read; copied unchanged."""
MODEL_CONFIG = "config.json"
"""Read for its `model_type`, which affects the tokenizer's class; not copied."""

OWN_FILES = (TOKENIZER_FILE, *SETTINGS, MODEL_CONFIG, *VOCABULARIES)
"""Files of a tokenizer in a model's folder."""

PASSING = ("is_local", "local_files_only")
"""Entries that transformers writes about the source of the files; removed."""

MOST_LISTED = 12
"""How many tokens a message lists."""

STATED = ("model_input_names", "padding_side", "truncation_side", "model_max_length", "clean_up_tokenization_spaces")
"""Values that a class may set in its own code."""

PROBES = (
    "The quick brown fox jumps over the lazy dog; it's 12,345.67 km, isn't it?\n\n  And\tthen  some   spaces. ",
    "def f(x: int) -> str:\n    return f'{x!r}' * 2  # comment\n\n\nclass A_b2(C):\r\n\t\"\"\"Doc.\"\"\"\n",
    "Größe, naïve café, Ελλάδα, Россия, हिन्दी, 日本語の文字, 한국어, العربية, עברית, 𝄞 👩‍💻 \u00a0\u200b e\u0301",
    "ALL CAPS camelCase snake_case 2024-01-02T03:04:05Z https://example.org/a?b=c&d=%20 <|endoftext|></s><s>[CLS]",
    " leading", "", "\n", "a",
)  # fmt: skip


def origin_of(store: Store, path: str) -> str:
    """The key of the model of the store that a tokenizer is taken from, else its absolute path."""
    own = _locate(store, path)
    return own[0] if own else str(Path(path).absolute())


def _locate(store: Store | None, path: str) -> tuple[str, Manifest] | None:
    """A model of the store that has the tokenizer; None for a file, and if the path is none of its runs or champions.
    Raises as `find_model`, for a name of the store that does not exist.
    """
    if store is None or Path(path).is_file() or not is_named_own(store, path):
        return None
    if (found := locate(store, path)) is None and not Path(path).exists():
        find_model(store, path)  # says what is missing
    return found


def find_files(path: str, store: Store | None = None) -> dict[str, Path]:
    """Find a tokenizer's files by name: those beside a tokenizer.json, of a model of the store, in another folder, or
    of a hub name.

    Raises `TokenizerError` if there are none, `ArtifactError` if a model of the store is damaged.
    """
    place = Path(path)
    if own := _locate(store, path):
        found = _fetch_own(cast(Store, store), *own)
    elif place.is_file():
        beside = _files_in(
            place.parent, (*SETTINGS, MODEL_CONFIG, *(VOCABULARIES if place.name == TOKENIZER_FILE else ()))
        )
        return {TOKENIZER_FILE: place, **beside}
    else:
        found = _files_in(place if place.is_dir() else _fetch(path), OWN_FILES)
    if not found.keys() & {TOKENIZER_FILE, *VOCABULARIES}:
        raise TokenizerError(f"tokenizer {path!r} cannot be loaded: it has neither {TOKENIZER_FILE} nor a vocabulary")
    return found


def _fetch_own(store: Store, key: str, manifest: Manifest) -> dict[str, Path]:
    files = [record for record in manifest.files if record.name in OWN_FILES]
    require_intact(store, key, manifest.model_copy(update={"files": files}))
    return {record.name: store.fetch(f"{key}/{record.name}", record.sha256) for record in files}


def take_tokenizer(path: str, eos_token: str | None, folder: Path, store: Store | None = None) -> str:
    """Write a copy of a tokenizer to a folder; returns its end-of-document token.

    The end token is the given one, else the tokenizer's own; it also pads if there is no padding token. Raises
    `TokenizerError` if the tokenizer cannot be loaded, has no end token, or differs when loaded from the folder.
    """
    files = find_files(path, store)
    with _loaded(path, files) as tokenizer:
        eos: str | None = eos_token or tokenizer.eos_token
        if eos is None and tokenizer.backend_tokenizer.token_to_id(END_OF_TEXT) is not None:
            eos = END_OF_TEXT
        if eos is None or tokenizer.backend_tokenizer.token_to_id(eos) is None:
            found = "has no end-of-document token" if eos is None else f"has no token {eos!r}"
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
                f"tokenizer {path!r} cannot be copied: as {PLAIN_CLASS} it differs in {', '.join(differences)}; save "
                "it with its own library as a complete tokenizer.json"
            )
    return eos


def _candidates(tokenizer: Any) -> str:
    """List the special tokens, which could end documents, each as it is written in a configuration."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    quoted = (json.dumps(token, ensure_ascii=False) for token in special)
    return f": its special ones are {some(quoted, MOST_LISTED)}" if special else " (none of them is special)"


def read_vocabulary(path: str) -> dict[str, int]:
    """The ids of a tokenizer's tokens; raises `TokenizerError` if it is missing or cannot be loaded."""
    with _loaded(path, find_files(path)) as tokenizer:
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        return vocabulary


def find_other_class(tokenizer_json: str, model_type: str) -> str | None:
    """The class that `AutoTokenizer` builds from a tokenizer in a model's folder, if it gives other ids; else None.

    For some model types it uses their own class regardless of tokenizer_config.json.
    """
    from transformers import AutoTokenizer

    with temporary_folder() as folder:
        Path(folder, TOKENIZER_FILE).write_text(tokenizer_json, encoding="utf-8")
        Path(folder, TOKENIZER_CONFIG).write_text(json.dumps({"tokenizer_class": PLAIN_CLASS}))
        Path(folder, MODEL_CONFIG).write_text(json.dumps({"model_type": model_type}))
        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # classes raise various errors for a foreign tokenizer
            return f"nothing ({error})"
    expected = [
        each.ids for each in Tokenizer.from_str(tokenizer_json).encode_batch(list(PROBES), add_special_tokens=False)
    ]
    same = [found(text, add_special_tokens=False, verbose=False)["input_ids"] for text in PROBES] == expected
    return None if same else type(found).__name__


def save_flat(tokenizer: Any, folder: Path, **settings: Any) -> None:
    """Write a tokenizer's files into one folder, several chat templates included, and replace settings in
    tokenizer_config.json.
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
    """Fetch the tokenizer files of a hub name, once per process; returns their folder in the local cache."""
    if not is_hub_name(name):
        raise TokenizerError(f"tokenizer {name!r} cannot be loaded: {NO_NAME}")
    patterns = [TOKENIZER_FILE, *SETTINGS, MODEL_CONFIG, *VOCABULARIES, f"{TEMPLATES}/*.jinja"]
    try:
        return fetch_from_hub(name, patterns)
    except ArtifactError as error:
        raise TokenizerError(
            f"tokenizer {name!r} cannot be loaded: it is no local file or folder, and {error}", error.transient
        ) from error


def _files_in(folder: Path, names: tuple[str, ...]) -> dict[str, Path]:
    templates = {f"{TEMPLATES}/{path.name}": path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    return {name: folder / name for name in names if (folder / name).is_file()} | templates


@contextmanager
def _loaded(path: str, files: Mapping[str, Path]) -> Iterator[Any]:
    """Yield the tokenizer that transformers loads from exactly these files, which exist within the block."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with temporary_folder() as folder:
        for name, file in files.items():
            (place := Path(folder, name)).parent.mkdir(exist_ok=True)
            place.symlink_to(file.resolve())
        if not Path(path).is_file():
            check_settings(folder, path)
        try:
            _spell_out(Path(folder, TOKENIZER_CONFIG))
            if files.keys() & {TOKENIZER_CONFIG, MODEL_CONFIG}:
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            else:
                tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
            if number_of(error) in FULL:
                raise
            own = (
                "it needs code of its own repository, which headrace never runs; "
                if "trust_remote_code" in str(error)
                else ""
            )
            raise TokenizerError(
                f"tokenizer {path!r} cannot be loaded: {own}{brief(error).replace(folder, path)}"
            ) from error
        if not tokenizer.is_fast:
            raise TokenizerError(
                f"tokenizer {path!r} is not one of the `tokenizers` library; convert it to a tokenizer.json"
            )
        yield tokenizer


def _spell_out(config: Path) -> None:
    """Mark tokens that are objects without a type as AddedToken; older files lack the type."""
    if not config.exists():
        return
    values = json.loads(config.read_text(encoding="utf-8"))
    tokens = {name: value for name, value in values.items() if name.endswith("_token") and isinstance(value, dict)}
    config.unlink()
    config.write_text(
        json.dumps({**values, **{name: {"__type": "AddedToken", **each} for name, each in tokens.items()}})
    )


def _keep_bytes(tokenizer: Any, original: Path | None, folder: Path) -> None:
    """Replace the rewritten tokenizer.json by the original one, if the results are the same."""
    if original is None:
        return
    written = folder / TOKENIZER_FILE
    content = written.read_bytes()
    shutil.copyfile(original, written)
    if _differences(tokenizer, folder):
        written.write_bytes(content)


def _differences(tokenizer: Any, folder: Path) -> list[str]:
    """The attributes in which the tokenizer of a folder differs from this one."""
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

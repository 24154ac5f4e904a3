"""Small labelled data in files of every kind, small models with their tokenizers, and a plain look at what was read."""

import csv
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertConfig, GPT2Config, PretrainedConfig

from tests.trainer.made import encode
from tests.trainer.raw_files import docstrings, one_line
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.data.labelled.encoded import EncodedSet, open_encoded
from trainer.data.labelled.examples import open_labelled
from trainer.data.splits import find_splits
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

END = "<|endoftext|>"
Record = dict[str, Any]


def records(count: int, labels: Sequence[Any] = (0, 1)) -> list[Record]:
    """Records with two texts (`a`, `b`), a `label` and an `id`; texts with line ends, quotes and commas among them."""
    texts = docstrings(2 * count + 5)
    return [
        {"id": f"x{n:03}", "a": texts[2 * n], "b": texts[2 * n + 1], "label": labels[n % len(labels)]}
        for n in range(count)
    ]


def flat_records(count: int, labels: Sequence[Any] = (0, 1)) -> list[Record]:
    """The same without line ends, tabs and empty texts."""
    return [{**r, "a": one_line([r["a"]])[0] or "-", "b": one_line([r["b"]])[0] or "-"} for r in records(count, labels)]


def as_csv(rows: Sequence[Record], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def as_plain_tsv(rows: Sequence[Record]) -> bytes:
    """Tab-separated lines in which quote characters mean nothing."""
    return "".join("\t".join(map(str, row)) + "\n" for row in [list(rows[0]), *(r.values() for r in rows)]).encode()


def as_jsonl(rows: Sequence[Record]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: Sequence[Record]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), file, row_group_size=7)
    return file.getvalue()


def written(path: Path, data: bytes | str) -> str:
    """Write a file; returns its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def saved_set(tmp_path: Path, splits: dict[str, list[Record]], names: list[str] | None = None) -> str:
    """A folder that `save_to_disk` wrote."""
    folder = str(tmp_path / "saved")
    sets = {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}
    if names is not None:
        sets = {split: each.cast_column("label", datasets.ClassLabel(names=names)) for split, each in sets.items()}
    datasets.DatasetDict(sets).save_to_disk(folder)
    return folder


class Found(NamedTuple):
    """What was read: of each split the ids, texts and labels; and the rest of the set."""

    classes: list[str] | None
    dropped: list[str]
    in_train: dict[str, int]
    ids: dict[str, list[str]]
    texts: dict[str, list[tuple[str, ...]]]
    labels: dict[str, list[Any]]
    bad: dict[str, int]


def read(**options: Any) -> Found:
    """Read a labelled data set; the columns are those of `records` if not said otherwise."""
    columns = {"text_columns": ["a", "b"], "id_column": "id"}
    data = LabelledDataConfig.model_validate({"name": "small", **columns, **options})
    source = find_splits(Store(f"memory://{uuid.uuid4().hex}"), data)
    with open_labelled(data, source, silent()) as found:
        examples = {name: list(split.examples()) for name, split in found.splits.items()}
        return Found(
            found.classes, found.dropped, found.in_train,
            {name: [example.id for example in each] for name, each in examples.items()},
            {name: [example.texts for example in each] for name, each in examples.items()},
            {name: split.labels.tolist() for name, split in found.splits.items()},
            {name: split.bad.count for name, split in found.splits.items()},
        )  # fmt: skip


def bert_folder(path: Path, positions: int = 64, settings: Mapping[str, Any] | None = None, **config: Any) -> Path:
    """The tokenizer and configuration of a BERT: WordPiece, [CLS] a [SEP] b [SEP], token types."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        docstrings(60), trainers.WordPieceTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    values = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": positions, **small, **config}
    known = {"tokenizer_class": "BertTokenizer", **special, **(settings or {})}
    return model_folder(path, tokenizer, BertConfig(**values), **known)


def gpt2_folder(path: Path, positions: int = 64, tokenizer: Tokenizer | None = None, **settings: Any) -> Path:
    """The tokenizer and configuration of a GPT-2: byte-level BPE, no special tokens of its own but the end token."""
    tokenizer = tokenizer or byte_level_bpe()
    end = tokenizer.token_to_id(END)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=positions, n_embd=16, n_layer=1, n_head=2, bos_token_id=end,
        eos_token_id=end,
    )  # fmt: skip
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": END, "unk_token": END}
    return model_folder(path, tokenizer, config, **{**defaults, **settings})


def model_folder(path: Path, tokenizer: Tokenizer, config: PretrainedConfig, **settings: Any) -> Path:
    """A model's folder without its weights."""
    path.mkdir(parents=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    config.save_pretrained(path)
    return path


def load(folder: Path | str) -> Any:
    """The tokenizer in a folder, as transformers loads it."""
    return AutoTokenizer.from_pretrained(str(folder))


def job_of(store: Path, **options: Any) -> FinetuneJob:
    """A job with such data; the model it names is not looked at."""
    columns = {"name": "small", "text_columns": ["a", "b"], "id_column": "id"}
    return FinetuneJob.model_validate(
        {"store": str(store), "data": {**columns, **options}, "model": {"pretrained": "any"}, "training": {"epochs": 1}}
    )


def prepared(job: FinetuneJob, model: Path) -> ArtifactRef:
    return encode(job, silent(), model)


def opened(job: FinetuneJob, model: Path) -> EncodedSet:
    return open_encoded(Store(job.store), prepared(job, model).key)


def encoded_rows(tmp_path: Path, rows: list[Record], model: Path, **options: Any) -> EncodedSet:
    """The set of some records, of which a test split is made too."""
    path = [written(tmp_path / "rows.jsonl", as_jsonl(rows))]
    return opened(job_of(tmp_path / "store", source="jsonl", train=path, validation=path, test=path, **options), model)


def pair_rows(texts: list[str]) -> list[Record]:
    """Records of texts of all lengths, each with another."""
    return [
        {"id": str(n), "a": texts[n] or "-", "b": texts[(n * 7 + 3) % len(texts)] or "-", "label": n % 2}
        for n in range(len(texts))
    ]

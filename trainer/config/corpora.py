"""The schemas of raw corpora, their tokenizer and their shards; all that the processes know that tokenize."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config.curation import CurationConfig
from trainer.config.schema import Delimiter, Name, Quoting, Schema, TableFormat, require_csv, require_records

MIB = 2**20
SAMPLE_BYTES = 64 * MIB


class CorpusConfig(Schema):
    """One named body of raw text."""

    name: Name = Field(description="name of the corpus, used in directory names and reports")
    paths: list[str] = Field(min_length=1, description="files or globs (** goes into folders), local or any fsspec URL")
    format: Literal["text", "source", "lines", TableFormat] = Field(
        default="text",
        description="text: one document a file, or split at `separator`; source: one document a file, line ends "
        "normalised; lines: one document a line; jsonl, csv, parquet: one document a record. .gz and .zst are unpacked",
    )
    text_field: str = Field(default="text", description="jsonl, csv, parquet: the field or column that holds the text")
    separator: str | None = Field(
        default=None, min_length=1, description="text: the line that stands between documents"
    )
    delimiter: Delimiter = None
    quoting: Quoting = None
    max_bad_records: int = Field(
        default=0, ge=0, description="records that may be skipped, counted, before it is an error"
    )

    @model_validator(mode="after")
    def _separator_needs_text(self) -> Self:
        if self.separator is not None and self.format != "text":
            raise ValueError(f"separator goes with format 'text', not {self.format!r}")
        if self.separator is not None and ("\n" in self.separator or "\r" in self.separator):
            raise ValueError("separator is one line: leave its line end out")
        return self

    @model_validator(mode="after")
    def _options_fit_the_format(self) -> Self:
        if self.text_field != "text":
            require_records("text_field", self.format)
        require_csv(self, "format", self.format)
        return self


class TokenizerConfig(Schema):
    """A tokenizer to train (`vocab_size`) or to take (`path`)."""

    name: Name = Field(default="bpe", description="name of a trained tokenizer; a new name trains a new one")
    vocab_size: int | None = Field(
        default=None,
        ge=257,
        le=2**24,
        description="train a byte-level BPE with this many tokens, <|endoftext|> included",
    )
    path: str | None = Field(
        default=None, description="or take this one: a tokenizer.json, a folder that holds one, or a pretrained name"
    )
    sample_bytes: int = Field(
        default=SAMPLE_BYTES, ge=1, description="bytes of raw text to train on, spread over the corpora"
    )
    eos_token: str | None = Field(
        default=None, description="with path: the end-of-document token; default: the one that the tokenizer names"
    )
    mask_token: str | None = Field(
        default=None,
        min_length=1,
        description="with vocab_size: a special token besides, such as <mask>, for masked models",
    )
    engine: Literal["gigatoken", "tokenizers"] = Field(
        default="gigatoken", description="gigatoken is checked against `tokenizers` on sampled documents first"
    )

    @model_validator(mode="after")
    def _train_or_take(self) -> Self:
        if (self.vocab_size is None) == (self.path is None):
            raise ValueError("give either vocab_size (train a tokenizer) or path (take one)")
        if self.mask_token is not None and self.path is not None:
            raise ValueError("mask_token goes with vocab_size: a tokenizer that is taken has its own special tokens")
        if self.sample_bytes != SAMPLE_BYTES and self.path is not None:
            raise ValueError("sample_bytes goes with vocab_size: a tokenizer that is taken is trained on nothing")
        if self.eos_token is not None and self.vocab_size is not None:
            raise ValueError("eos_token goes with path: a tokenizer that is trained ends documents with <|endoftext|>")
        return self


class ShardConfig(Schema):
    """How a corpus is divided into numbered shards."""

    num_shards: int | None = Field(
        default=None, ge=1, le=99999, description="shards a corpus; default: from shard_bytes"
    )
    shard_bytes: int = Field(
        default=256 * MIB, ge=1, description="raw bytes a shard, as they are stored, where num_shards is not given"
    )
    piece_bytes: int = Field(
        default=8 * MIB, ge=1024, le=64 * MIB, description="larger files are cut into pieces of about this many bytes"
    )


class DataConfig(Schema):
    """From raw corpora to token shards."""

    corpora: list[CorpusConfig] = Field(min_length=1, description="the corpora to mix")
    tokenizer: TokenizerConfig = Field(description="the tokenizer to train or to take")
    shards: ShardConfig = Field(default=ShardConfig(), description="number or size of the shards")
    curation: CurationConfig | None = Field(default=None, description="which documents stay; default: all, as they are")
    validation_fraction: float = Field(
        default=0.01, ge=0.0, lt=1.0, description="share of documents held out, chosen by a hash of their content"
    )
    workers: int | None = Field(default=None, ge=1, description="tokenizing processes; default: one a core")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [corpus.name for corpus in self.corpora]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two corpora share the name {doubles[0]!r}")
        return self

    @model_validator(mode="after")
    def _filters_name_corpora(self) -> Self:
        names = [corpus.name for corpus in self.corpora]
        for rule in self.curation.filters if self.curation else []:
            if unknown := [name for name in rule.corpora or [] if name not in names]:
                raise ValueError(
                    f"a filter of kind {rule.kind!r} is for the corpus {unknown[0]!r}; there are {', '.join(names)}"
                )
        return self

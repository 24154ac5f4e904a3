"""Schemas of raw corpora, their tokenizer and their shards: the only settings that tokenizing processes read."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainer.config.curation import CurationConfig
from trainer.config.schema import Delimiter, Name, Quoting, Schema, TableFormat, require_csv, require_records

MIB = 2**20
SAMPLE_BYTES = 64 * MIB


class CorpusConfig(Schema):
    """One named corpus of raw text."""

    named_by: ClassVar[str] = "; set text_field to the field that holds the text"
    """The end of a message about records without the text's field."""

    name: Name = Field(description="name of the corpus, used in directory names and reports")
    paths: list[str] = Field(
        min_length=1, description="files or globs (** includes subfolders), local or any fsspec URL"
    )
    format: Literal["text", "source", "lines", TableFormat] = Field(
        default="text",
        description="text: one document per file, or split at `separator`; source: one document per file, line ends "
        "normalised; lines: one document per line; jsonl, csv, parquet: one document per record. .gz, .zst, "
        ".bz2, .xz and .lzma files, and .zip files that hold one file, are decompressed",
    )
    text_field: str = Field(default="text", description="jsonl, csv, parquet: the field or column that holds the text")
    separator: str | None = Field(
        default=None, min_length=1, description="format text: the line that separates documents"
    )
    delimiter: Delimiter = None
    quoting: Quoting = None
    max_bad_records: int = Field(
        default=0, ge=0, description="invalid records that are skipped and counted; one more is an error"
    )

    @model_validator(mode="after")
    def _separator_needs_text(self) -> Self:
        if self.separator is not None and self.format != "text":
            raise ValueError(f"separator requires format 'text', not {self.format!r}")
        if self.separator is not None and ("\n" in self.separator or "\r" in self.separator):
            raise ValueError("separator is one line: remove its line end")
        return self

    @model_validator(mode="after")
    def _options_fit_the_format(self) -> Self:
        if self.text_field != "text":
            require_records("text_field", self.format)
        require_csv(self, "format", self.format)
        return self


class TokenizerConfig(Schema):
    """A tokenizer to train (`vocab_size`) or an existing one (`path`)."""

    name: Name = Field(default="bpe", description="name of a trained tokenizer; a new name trains a new one")
    vocab_size: int | None = Field(
        default=None,
        ge=257,
        le=2**24,
        description="train a byte-level BPE with this many tokens, <|endoftext|> included",
    )
    path: str | None = Field(
        default=None,
        description="use an existing tokenizer: a tokenizer.json, a folder that contains one, a run (runs/NAME) or "
        "champion (models/NAME) of this store, or a pretrained model's name",
    )
    sample_bytes: int = Field(
        default=SAMPLE_BYTES, ge=1, description="bytes of raw text to train the tokenizer on, spread over the corpora"
    )
    eos_token: str | None = Field(
        default=None, description="with path: the end-of-document token; default: the tokenizer's own"
    )
    mask_token: str | None = Field(
        default=None,
        min_length=1,
        description="with vocab_size: an additional special token, such as <mask>, for masked models",
    )
    engine: Literal["gigatoken", "tokenizers"] = Field(
        default="gigatoken",
        description="library that tokenizes; gigatoken is used only if it matches `tokenizers` on sampled documents",
    )

    @model_validator(mode="after")
    def _train_or_take(self) -> Self:
        if (self.vocab_size is None) == (self.path is None):
            raise ValueError("give either vocab_size (train a tokenizer) or path (use an existing one)")
        if self.mask_token is not None and self.path is not None:
            raise ValueError("mask_token requires vocab_size: the tokenizer in path has its own special tokens")
        if self.sample_bytes != SAMPLE_BYTES and self.path is not None:
            raise ValueError("sample_bytes requires vocab_size: the tokenizer in path is not trained")
        if self.eos_token is not None and self.vocab_size is not None:
            raise ValueError("eos_token requires path: a newly trained tokenizer ends documents with <|endoftext|>")
        return self


class ShardConfig(Schema):
    """Division of a corpus into numbered shards."""

    num_shards: int | None = Field(
        default=None, ge=1, le=99999, description="shards per corpus; default: computed from shard_bytes"
    )
    shard_bytes: int = Field(
        default=256 * MIB, ge=1, description="raw bytes per shard, before decompression, if num_shards is not set"
    )
    piece_bytes: int = Field(
        default=8 * MIB, ge=1024, le=64 * MIB, description="larger files are split into pieces of about this many bytes"
    )


class DataConfig(Schema):
    """Raw corpora and how they become token shards."""

    corpora: list[CorpusConfig] = Field(min_length=1, description="the corpora to mix")
    tokenizer: TokenizerConfig = Field(description="the tokenizer to train or use")
    shards: ShardConfig = Field(default=ShardConfig(), description="number or size of the shards")
    curation: CurationConfig | None = Field(
        default=None, description="filters and deduplication; default: keep all documents unchanged"
    )
    validation_fraction: float = Field(
        default=0.01, ge=0.0, lt=1.0, description="share of documents held out, chosen by a hash of their content"
    )
    workers: int | None = Field(
        default=None, ge=1, description="tokenizing processes; default: one per core that a container may use"
    )

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
                    f"a filter of kind {rule.kind!r} names the unknown corpus {unknown[0]!r}; data.corpora has "
                    f"{', '.join(names)}"
                )
        return self

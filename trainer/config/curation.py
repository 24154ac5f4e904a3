"""The schemas of curation: how raw text is read, which documents stay, and what is kept out of training."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.schema import Delimiter, Name, Quoting, Schema, TableFormat, require_csv, require_records

LANGUAGE = r"^[a-z]{2,3}$"
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class Bound(NamedTuple):
    """A threshold of a rule: the field of the measure that it bounds, and the least and the most that stay."""

    field: str
    least: float | None = None
    most: float | None = None


class Rule(Schema):
    """One filter: the corpora that it is for, and its bounds, in the order in which they are tried."""

    corpora: list[Name] | None = Field(default=None, min_length=1, description="names of the corpora; default: all")

    @property
    def label(self) -> str:
        """What its reasons begin with."""
        return str(self.kind)  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not any(True for _ in self.bounds()) and not isinstance(self, LanguageRule):
            names = [name for name in type(self).model_fields if name.startswith(("least_", "most_"))]
            raise ValueError(f"it has no bound, so nothing would go: set {' or '.join(names)}")
        return self

    def bounds(self) -> Iterator[Bound]:
        """The bounds that are set; a field that is named `least_X` or `most_X` bounds X."""
        for name in type(self).model_fields:
            side, _, field = name.partition("_")
            value = getattr(self, name)
            if side in ("least", "most") and value is not None:
                yield Bound(field, **{side: float(value)})


class QualityRule(Rule):
    """The quality rules of Gopher (Rae et al. 2021, A1.1), with its thresholds."""

    kind: Literal["gopher_quality"] = Field(description="the quality rules of Gopher")
    least_words: int | None = Field(default=50, ge=0, description="words between white space, symbols not counted")
    most_words: int | None = Field(default=100_000, ge=1, description="words between white space, symbols not counted")
    least_mean_word_length: float | None = Field(default=3.0, ge=0, description="characters a word on average")
    most_mean_word_length: float | None = Field(default=10.0, ge=0, description="characters a word on average")
    most_hashes_per_word: float | None = Field(default=0.1, ge=0, description="# signs a word")
    most_ellipses_per_word: float | None = Field(default=0.1, ge=0, description="ellipses a word")
    most_bullet_lines: float | None = Field(
        default=0.9, ge=0, le=1, description="share of lines that begin with a bullet"
    )
    most_ellipsis_lines: float | None = Field(
        default=0.3, ge=0, le=1, description="share of lines that end with an ellipsis"
    )
    least_words_with_letter: float | None = Field(default=0.8, ge=0, le=1, description="share of words with a letter")
    least_stop_words: int | None = Field(
        default=2, ge=0, description="of the, be, to, of, and, that, have, with: how many"
    )


class RepetitionRule(Rule):
    """The repetition rules of Gopher (Rae et al. 2021, table A1), with its thresholds: shares that repeat
    themselves.
    """

    kind: Literal["gopher_repetition"] = Field(description="the repetition rules of Gopher")
    most_duplicate_lines: float | None = Field(default=0.3, ge=0, le=1, description="share of lines")
    most_duplicate_paragraphs: float | None = Field(default=0.3, ge=0, le=1, description="share of paragraphs")
    most_duplicate_line_characters: float | None = Field(default=0.2, ge=0, le=1, description="share of characters")
    most_duplicate_paragraph_characters: float | None = Field(
        default=0.2, ge=0, le=1, description="share of characters"
    )
    most_top_2_gram_characters: float | None = Field(
        default=0.2, ge=0, description="share of characters in the most frequent"
    )
    most_top_3_gram_characters: float | None = Field(
        default=0.18, ge=0, description="share of characters in the most frequent"
    )
    most_top_4_gram_characters: float | None = Field(
        default=0.16, ge=0, description="share of characters in the most frequent"
    )
    most_duplicate_5_gram_characters: float | None = Field(default=0.15, ge=0, description="share of characters")
    most_duplicate_6_gram_characters: float | None = Field(default=0.14, ge=0, description="share of characters")
    most_duplicate_7_gram_characters: float | None = Field(default=0.13, ge=0, description="share of characters")
    most_duplicate_8_gram_characters: float | None = Field(default=0.12, ge=0, description="share of characters")
    most_duplicate_9_gram_characters: float | None = Field(default=0.11, ge=0, description="share of characters")
    most_duplicate_10_gram_characters: float | None = Field(default=0.1, ge=0, description="share of characters")


class C4Rule(Rule):
    """The rules of C4 over whole documents (Raffel et al. 2020, 2.2)."""

    kind: Literal["c4"] = Field(description="the rules of C4")
    least_sentences: int | None = Field(default=5, ge=0, description="sentences on lines that end as sentences do")
    most_lorem_ipsum_lines: int | None = Field(default=0, ge=0, description="lines with these words")
    most_curly_bracket_lines: int | None = Field(default=0, ge=0, description="lines with one")


class LengthRule(Rule):
    """Bounds on a document's length."""

    kind: Literal["length"] = Field(description="bounds on the length")
    least_bytes: int | None = Field(default=None, ge=0, description="bytes of UTF-8")
    most_bytes: int | None = Field(default=None, ge=1, description="bytes of UTF-8")


class LanguageRule(Rule):
    """The languages that stay, as py3langid tells them."""

    kind: Literal["language"] = Field(description="the language that py3langid tells")
    languages: list[Annotated[str, Field(pattern=LANGUAGE)]] = Field(
        min_length=1, description="ISO 639 codes, such as en"
    )
    least_language_probability: float = Field(default=0.0, ge=0, le=1, description="of the most likely language")


class PatternRule(Rule):
    """A regular expression that documents must not, or must, contain."""

    kind: Literal["pattern"] = Field(description="a regular expression")
    name: Name = Field(description="what the reason is called")
    pattern: str = Field(min_length=1, description="a regular expression of Python, searched for everywhere")
    least_matches: int | None = Field(default=None, ge=1, description="fewer are dropped")
    most_matches: int | None = Field(default=None, ge=0, description="more are dropped")

    @property
    def label(self) -> str:
        return self.name

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class ScoreRule(Rule):
    """A number that the data has beside the text."""

    kind: Literal["score"] = Field(description="a number beside the text")
    column: str = Field(min_length=1, description="jsonl, csv, parquet: the field or column that holds the number")
    least_score: float | None = Field(default=None, description="documents below it, or without a number, are dropped")
    most_score: float | None = Field(default=None, description="documents above it, or without a number, are dropped")

    @property
    def label(self) -> str:
        return f"score {self.column}"


class FunctionRule(Rule):
    """A function of one's own: it takes a document's text, and returns whether it stays, or a number to bound."""

    kind: Literal["function"] = Field(description="a function of one's own")
    function: str = Field(pattern=FUNCTION, description="module:function, where Python finds it")
    least_value: float | None = Field(
        default=None, description="of what it returns; true counts 1 and false 0; default 1"
    )
    most_value: float | None = Field(default=None, description="of what it returns")

    @property
    def label(self) -> str:
        return self.function

    def bounds(self) -> Iterator[Bound]:
        if self.least_value is None and self.most_value is None:
            yield Bound("value", least=1.0)
        yield from super().bounds()


Filter = Annotated[
    QualityRule | RepetitionRule | C4Rule | LengthRule | LanguageRule | PatternRule | ScoreRule | FunctionRule,
    Field(discriminator="kind"),
]

Step = Literal["unicode", "case", "punctuation", "space"]


class ExactConfig(Schema):
    """Documents that are the same but for what is normalised; the first one, in the order of the corpora and files,
    stays.
    """

    normalise: list[Step] = Field(
        default=["unicode", "space"],
        description="what does not count: unicode: how a character is written (NFC); case; punctuation; space: how "
        "much",
    )


class NearConfig(Schema):
    """Documents that another one makes superfluous, which has at least as many different n-grams and stays.

    Candidates are found by MinHash (Broder 1997): two of a Jaccard similarity s share a key, and are compared, with the
    probability 1 - (1 - s**rows)**bands.
    """

    least_similarity: float = Field(
        default=0.8, gt=0, le=1, description="Jaccard similarity of the n-grams: from here on it goes"
    )
    least_contained: float = Field(
        default=0.95, gt=0, le=1, description="share of a document's n-grams that another one has: from here on it goes"
    )
    ngram: int = Field(default=5, ge=1, le=50, description="words of an n-gram")
    bands: int = Field(
        default=14, ge=1, le=255, description="bands of a signature; documents with an equal one are compared"
    )
    rows: int = Field(default=5, ge=1, le=64, description="minima of each band")
    seed: int = Field(default=1, ge=0, le=2**32 - 1, description="of the hash functions")

    def found(self, similarity: float) -> float:
        """The probability that a pair of this Jaccard similarity is compared."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


class EvaluationText(Schema):
    """Files of an evaluation set whose examples must not be trained on."""

    paths: list[str] = Field(min_length=1, description="files or globs, local or any fsspec URL")
    format: Literal["text", "lines", TableFormat] = Field(default="lines", description="as of a corpus")
    fields: list[str] = Field(default=["text"], min_length=1, description="jsonl, csv, parquet: those that hold text")
    delimiter: Delimiter = None
    quoting: Quoting = None

    @model_validator(mode="after")
    def _options_fit_the_format(self) -> Self:
        if self.fields != ["text"]:
            require_records("fields", self.format)
        require_csv(self, "format", self.format)
        return self


class DecontaminateConfig(Schema):
    """Documents that share an n-gram of words with an evaluation set are dropped."""

    ngram: int = Field(
        default=13,
        ge=1,
        le=50,
        description="words that are shared; an example of fewer counts as a whole; two characters of Chinese are a "
        "word",
    )
    least_words: int = Field(default=5, ge=1, description="examples with fewer words are too common to be looked for")
    files: list[EvaluationText] = Field(default=[], description="evaluation sets")
    jobs: list[str] = Field(
        default=[], description="configurations of `headrace finetune` whose validation and test texts are kept out"
    )
    tasks: list[str] = Field(
        default=[],
        description="YAML files of lm-eval's tasks, or groups, whose questions are kept out",
    )

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not self.files and not self.jobs and not self.tasks:
            raise ValueError("name the evaluation sets: files, jobs or tasks")
        return self


class TransformConfig(Schema):
    """What is made of each document before anything else sees it."""

    unicode: Literal["NFC", "NFKC"] | None = Field(default=None, description="the normal form that text is brought to")
    mask: list[Literal["email", "ip"]] = Field(default=[], description="addresses that are written as <email>, <ip>")


class CurationConfig(Schema):
    """Which documents of the raw text are tokenized."""

    transform: TransformConfig | None = Field(default=None, description="what is made of each document first")
    filters: list[Filter] = Field(default=[], description="rules; the first that a document breaks is its reason")
    decontaminate: DecontaminateConfig | None = Field(default=None, description="evaluation sets to keep out")
    exact: ExactConfig | None = Field(default=ExactConfig(), description="exact duplicates; null keeps them")
    near: NearConfig | None = Field(default=None, description="near duplicates, by MinHash")

"""Schemas of curation: text transforms, filters, deduplication, and evaluation text to keep out of training."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.schema import Delimiter, Name, Quoting, Schema, TableFormat, require_csv, require_records

LANGUAGE = r"^[a-z]{2,3}$"
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class Bound(NamedTuple):
    """A threshold of a rule: the measured field, and the smallest and largest value that a kept document may have."""

    field: str
    least: float | None = None
    most: float | None = None


class Rule(Schema):
    """One filter: the corpora that it applies to, and its bounds in the order in which they are checked."""

    corpora: list[Name] | None = Field(default=None, min_length=1, description="names of the corpora; default: all")

    @property
    def label(self) -> str:
        """The start of each reason that this rule gives."""
        return str(self.kind)  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not any(True for _ in self.bounds()) and not isinstance(self, LanguageRule):
            names = [name for name in type(self).model_fields if name.startswith(("least_", "most_"))]
            raise ValueError(f"the rule has no bound and would drop nothing: set {' or '.join(names)}")
        return self

    @model_validator(mode="after")
    def _keeps_something(self) -> Self:
        lowest = {bound.field: bound.least for bound in self.bounds() if bound.least is not None}
        for field, _, most in self.bounds():
            if most is not None and (least := lowest.get(field, most)) > most:
                raise ValueError(
                    f"the rule would drop every document: least_{field} is {least:.15g}, above most_{field}, "
                    f"{most:.15g}"
                )
        return self

    def bounds(self) -> Iterator[Bound]:
        """The bounds that are set: a field `least_X` or `most_X` bounds X."""
        for name in type(self).model_fields:
            side, _, field = name.partition("_")
            value = getattr(self, name)
            if side in ("least", "most") and value is not None:
                yield Bound(field, **{side: float(value)})


class QualityRule(Rule):
    """The quality rules of Gopher (Rae et al. 2021, A1.1), with its thresholds."""

    kind: Literal["gopher_quality"] = Field(description="the quality rules of Gopher")
    least_words: int | None = Field(default=50, ge=0, description="words separated by white space, without symbols")
    most_words: int | None = Field(default=100_000, ge=1, description="words separated by white space, without symbols")
    least_mean_word_length: float | None = Field(default=3.0, ge=0, description="mean characters per word")
    most_mean_word_length: float | None = Field(default=10.0, ge=0, description="mean characters per word")
    most_hashes_per_word: float | None = Field(default=0.1, ge=0, description="# signs per word")
    most_ellipses_per_word: float | None = Field(default=0.1, ge=0, description="ellipses per word")
    most_bullet_lines: float | None = Field(
        default=0.9, ge=0, le=1, description="share of lines that begin with a bullet"
    )
    most_ellipsis_lines: float | None = Field(
        default=0.3, ge=0, le=1, description="share of lines that end with an ellipsis"
    )
    least_words_with_letter: float | None = Field(default=0.8, ge=0, le=1, description="share of words with a letter")
    least_stop_words: int | None = Field(
        default=2, ge=0, description="how many of the words the, be, to, of, and, that, have, with"
    )


def _share_of_characters(default: float, repeated: str) -> Any:
    """The field of a threshold for the share of a document's characters in repeated n-grams."""
    return Field(default=default, ge=0, description=f"share of characters in {repeated}")


class RepetitionRule(Rule):
    """The repetition rules of Gopher (Rae et al. 2021, table A1), with its thresholds: shares of repeated text."""

    kind: Literal["gopher_repetition"] = Field(description="the repetition rules of Gopher")
    most_duplicate_lines: float | None = Field(default=0.3, ge=0, le=1, description="share of duplicate lines")
    most_duplicate_paragraphs: float | None = Field(
        default=0.3, ge=0, le=1, description="share of duplicate paragraphs"
    )
    most_duplicate_line_characters: float | None = Field(
        default=0.2, ge=0, le=1, description="share of characters in duplicate lines"
    )
    most_duplicate_paragraph_characters: float | None = Field(
        default=0.2, ge=0, le=1, description="share of characters in duplicate paragraphs"
    )
    most_top_2_gram_characters: float | None = _share_of_characters(0.2, "the most frequent 2-gram")
    most_top_3_gram_characters: float | None = _share_of_characters(0.18, "the most frequent 3-gram")
    most_top_4_gram_characters: float | None = _share_of_characters(0.16, "the most frequent 4-gram")
    most_duplicate_5_gram_characters: float | None = _share_of_characters(0.15, "duplicate 5-grams")
    most_duplicate_6_gram_characters: float | None = _share_of_characters(0.14, "duplicate 6-grams")
    most_duplicate_7_gram_characters: float | None = _share_of_characters(0.13, "duplicate 7-grams")
    most_duplicate_8_gram_characters: float | None = _share_of_characters(0.12, "duplicate 8-grams")
    most_duplicate_9_gram_characters: float | None = _share_of_characters(0.11, "duplicate 9-grams")
    most_duplicate_10_gram_characters: float | None = _share_of_characters(0.1, "duplicate 10-grams")


class C4Rule(Rule):
    """The rules of C4 over whole documents (Raffel et al. 2020, 2.2)."""

    kind: Literal["c4"] = Field(description="the rules of C4")
    least_sentences: int | None = Field(
        default=5, ge=0, description="sentences on lines that end with sentence punctuation"
    )
    most_lorem_ipsum_lines: int | None = Field(default=0, ge=0, description="lines that contain 'lorem ipsum'")
    most_curly_bracket_lines: int | None = Field(default=0, ge=0, description="lines that contain a curly bracket")


class LengthRule(Rule):
    """Bounds on a document's length."""

    kind: Literal["length"] = Field(description="bounds on the length")
    least_bytes: int | None = Field(default=None, ge=0, description="bytes of UTF-8")
    most_bytes: int | None = Field(default=None, ge=1, description="bytes of UTF-8")


class LanguageRule(Rule):
    """The languages to keep, as detected by py3langid."""

    kind: Literal["language"] = Field(description="the language detected by py3langid")
    languages: list[Annotated[str, Field(pattern=LANGUAGE)]] = Field(
        min_length=1, description="languages to keep: ISO 639 codes, such as en"
    )
    least_language_probability: float = Field(
        default=0.0, ge=0, le=1, description="probability of the most likely language"
    )


class PatternRule(Rule):
    """A regular expression that documents must not, or must, contain."""

    kind: Literal["pattern"] = Field(description="a regular expression")
    name: Name = Field(description="name of the rule in the reports")
    pattern: str = Field(min_length=1, description="a Python regular expression, searched for in the whole document")
    least_matches: int | None = Field(default=None, ge=1, description="documents with fewer matches are dropped")
    most_matches: int | None = Field(default=None, ge=0, description="documents with more matches are dropped")

    @property
    def label(self) -> str:
        return self.name

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:  # a{99999999999}; many nested groups
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class ScoreRule(Rule):
    """A number stored with each document."""

    kind: Literal["score"] = Field(description="a number stored with each document")
    column: str = Field(min_length=1, description="jsonl, csv, parquet: the field or column that holds the number")
    least_score: float | None = Field(default=None, description="documents below it, or without a number, are dropped")
    most_score: float | None = Field(default=None, description="documents above it, or without a number, are dropped")

    @property
    def label(self) -> str:
        return f"score {self.column}"


class FunctionRule(Rule):
    """A user-defined function of a document's text; it returns whether to keep the document, or a number to bound."""

    kind: Literal["function"] = Field(description="a user-defined function")
    function: str = Field(pattern=FUNCTION, description="module:function, importable by Python")
    least_value: float | None = Field(
        default=None,
        description="smallest returned value that is kept; true counts as 1, false as 0; default: 1, or none if "
        "most_value is set",
    )
    most_value: float | None = Field(default=None, description="largest returned value that is kept")

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
    """Documents that are equal after normalisation; the first one, in the order of corpora and files, is kept."""

    normalise: list[Step] = Field(
        default=["unicode", "space"],
        description="differences to ignore: unicode: composed or decomposed characters (NFC); case; punctuation; "
        "space: amount of white space",
    )


class NearConfig(Schema):
    """Near duplicates: a document is dropped if a kept one is similar and has at least as many distinct n-grams.

    MinHash finds the candidates (Broder 1997): two documents with Jaccard similarity s share a key, and are compared,
    with probability 1 - (1 - s**rows)**bands.
    """

    least_similarity: float = Field(
        default=0.8, gt=0, le=1, description="a document with at least this Jaccard similarity of n-grams is dropped"
    )
    least_contained: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="a document with at least this share of its n-grams in another one is dropped",
    )
    ngram: int = Field(default=5, ge=1, le=50, description="words per n-gram")
    bands: int = Field(
        default=14, ge=1, le=255, description="bands per MinHash signature; documents that share one are compared"
    )
    rows: int = Field(default=5, ge=1, le=64, description="hash minima per band")
    seed: int = Field(default=1, ge=0, le=2**32 - 1, description="seed of the hash functions")

    def found(self, similarity: float) -> float:
        """Probability that two documents of this Jaccard similarity are compared."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


class EvaluationText(Schema):
    """Files of an evaluation set that must stay out of training."""

    paths: list[str] = Field(min_length=1, description="files or globs, local or any fsspec URL")
    format: Literal["text", "lines", TableFormat] = Field(default="lines", description="format, as for a corpus")
    fields: list[str] = Field(
        default=["text"], min_length=1, description="jsonl, csv, parquet: the fields or columns that hold text"
    )
    delimiter: Delimiter = None
    quoting: Quoting = None

    @model_validator(mode="after")
    def _options_fit_the_format(self) -> Self:
        if self.fields != ["text"]:
            require_records("fields", self.format)
        require_csv(self, "format", self.format)
        return self


class DecontaminateConfig(Schema):
    """Decontamination: documents that share an n-gram of words with an evaluation set are dropped."""

    ngram: int = Field(
        default=13,
        ge=1,
        le=50,
        description="words per shared n-gram; a shorter example must match as a whole; two Chinese characters count as "
        "one word",
    )
    least_words: int = Field(default=5, ge=1, description="examples with fewer words are ignored as too common")
    files: list[EvaluationText] = Field(default=[], description="evaluation sets")
    jobs: list[str] = Field(
        default=[], description="configurations of `headrace finetune` whose validation and test texts are kept out"
    )
    tasks: list[str] = Field(
        default=[],
        description="YAML files of lm-eval tasks or groups whose questions are kept out",
    )

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not self.files and not self.jobs and not self.tasks:
            raise ValueError("set at least one of files, jobs and tasks")
        return self


class TransformConfig(Schema):
    """Changes to each document before all other steps."""

    unicode: Literal["NFC", "NFKC"] | None = Field(default=None, description="Unicode normalisation of the text")
    mask: list[Literal["email", "ip"]] = Field(default=[], description="replace addresses with <email>, <ip>")


class CurationConfig(Schema):
    """Which documents of the raw text to tokenize."""

    transform: TransformConfig | None = Field(default=None, description="changes to each document before filtering")
    filters: list[Filter] = Field(default=[], description="rules; the first violated rule is recorded as the reason")
    decontaminate: DecontaminateConfig | None = Field(default=None, description="evaluation sets to keep out")
    exact: ExactConfig | None = Field(default=ExactConfig(), description="removal of exact duplicates; null keeps them")
    near: NearConfig | None = Field(default=None, description="removal of near duplicates, by MinHash")

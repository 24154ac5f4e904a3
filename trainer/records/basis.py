"""The data and settings that metrics were measured with, and whether two metrics are comparable."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from trainer.common.display import count, some
from trainer.config.evaluation import PREFIX
from trainer.records.fields import printable
from trainer.store.manifest import fingerprint
from trainer.store.names import Count, Digest


class Record(BaseModel):
    """Frozen base model; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskData(Record):
    """A local file of a task's examples; `asked`: evaluated examples, else others, such as solved ones for prompts."""

    path: str
    sha256: Digest
    asked: bool


class TaskIdentity(Record):
    """A task's questions and settings; metrics of one name are comparable if these are equal.

    `definition` is the digest of the task's YAML files and functions, `data` its local files. A task of lm-eval itself
    has neither: its version identifies it, and its data is that of the hub.
    """

    definition: Digest | None = None
    data: list[TaskData] = []
    limit: Count | None = None
    few_shot: Count | None = None
    chat_template: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether questions are messages in the model's chat template."""
    lm_eval: str


def task_of(figure: str) -> str | None:
    """The lm-eval task in a metric's name, or None if it is not a metric of lm-eval."""
    return figure.removeprefix(PREFIX).split("/")[0] if figure.startswith(PREFIX) else None


Pieces = list[tuple[int, int, str]]
"""A file's pieces in order, each with its start, end and digest."""

SEVERAL = "dataset_dict.json"
"""The file that `save_to_disk` writes next to the folders of several splits."""


def by_file(pieces: Iterable[Mapping[str, Any]], name: str = "key") -> dict[str, Pieces]:
    """Group the pieces in a set's sources.json by file, identified by its key or its `path`."""
    files: dict[str, Pieces] = {}
    for piece in sorted(pieces, key=lambda each: (each[name], each["index"])):
        files.setdefault(piece[name], []).append((piece["start"], piece["end"], piece["sha256"]))
    return files


NAMED = 3
"""Maximum number of differing files of a kind that are listed by name."""


class FileChanges(NamedTuple):
    """Raw files by name. `recut` have the same size and were cut at other positions, so contents are not compared."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    same: list[str]
    recut: list[str]

    @property
    def different(self) -> int:
        """The number of files that are known to differ."""
        return len(self.added) + len(self.removed) + len(self.changed)

    def describe(self, *kinds: str) -> list[str]:
        """The number of files of these kinds, with the first names; without kinds of which there are none."""
        files = {kind: getattr(self, kind) for kind in kinds}
        return [
            f"{count(len(names))} {kind} ({some(map(printable, names), NAMED)})"
            for kind, names in files.items()
            if names
        ]


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any], recut: bool) -> FileChanges:
    """The changes of raw files, given by their pieces or digests. `recut`: files were cut by different rules."""
    both = [name for name in after if name in before]
    other = [name for name in both if before[name] != after[name]]
    cut = {name for name in other if recut and _are_cut_differently(before[name], after[name])}
    return FileChanges(
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        changed=[name for name in other if name not in cut],
        same=[name for name in both if before[name] == after[name]],
        recut=[name for name in other if name in cut],
    )


def _are_cut_differently(before: Any, after: Any) -> bool:
    """Whether a file's pieces have other positions, but the same end."""
    if not isinstance(before, list) or not isinstance(after, list):
        return False
    return [each[:2] for each in before] != [each[:2] for each in after] and before[-1][1] == after[-1][1]


def labelled_digests(identity: Any, paths: Mapping[str, list[str]]) -> dict[str, str]:
    """The digests in a labelled set's identity: of files, by path, or by split and number if the path is unknown.

    For a folder written by `save_to_disk`, by relative path; for a data set of the hub, by split.
    """
    if isinstance(identity, dict):
        found: dict[str, str] = {}
        for split, files in identity.items():
            names = paths.get(split) or [f"{split} {number}" for number in range(len(files))]
            found.update({name: file[0] for name, file in zip(names, files, strict=True)})
        return found
    if len(identity) == 2:
        return {key: sha256 for key, sha256 in identity[0]}
    path, subset, prints = identity
    return {f"{path}{f'/{subset}' if subset else ''}: {split}": "/".join(found) for split, found in prints.items()}


def without_test(identity: Any) -> Any:
    """A labelled set's identity without its test split.

    In a folder written by `save_to_disk`, each of several splits has a subfolder with its name.
    """
    if isinstance(identity, dict):
        return _but_test(identity)
    if len(identity) == 2:
        files, splits = identity[0], _but_test(identity[1])
        if SEVERAL in (key for key, _ in files):
            read = {name for names in splits.values() for name in names}
            files = [[key, sha256] for key, sha256 in files if key.split("/")[0] in read]
        return [files, splits]
    path, subset, prints = identity
    return [path, subset, _but_test(prints)]


def _but_test(splits: Mapping[str, Any]) -> dict[str, Any]:
    return {split: value for split, value in splits.items() if split != "test"}


def describe_file(path: str, pieces: Pieces, file_bytes: int) -> dict[str, Any]:
    """A raw file with its stored size, and its digest, or those of its pieces if it was split."""
    whole = re.fullmatch(r"([0-9a-f]{64}):\d+-\d+", pieces[0][2])
    if whole:  # Parquet, cut between row groups
        return {"path": path, "bytes": file_bytes, "sha256": whole[1]}
    # The digest of a CSV file's later pieces is preceded by that of its first line.
    cut = [{"start": start, "end": end, "sha256": digest.rpartition(":")[2]} for start, end, digest in pieces]
    rest = {"sha256": cut[0]["sha256"]} if len(cut) == 1 else {"pieces": cut}
    return {"path": path, "bytes": pieces[-1][1], **rest}


BITS_PER_BYTE = "bits_per_byte"

OF_CLASS = " of "
"""Separator between a metric and the class that it refers to, if the job sets one."""

KEPT = 0.999
"""Share of a text's bytes that its tokens must represent to count as lossless."""


USUAL_TOKEN_BYTES = 4


class Basis(Record):
    """Common fields of all bases of metrics."""

    harness: dict[str, str] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Identity of each lm-eval task, if the tasks were evaluated as well."""


class HarnessBasis(Basis):
    """Basis of metrics of lm-eval tasks alone."""


class TextBasis(Basis):
    """Basis of a language model's metrics: digests of the held-out text by corpus, and how the model read it.

    `tokenizer` is the SHA-256 of tokenizer.json, `keeps_text` whether tokenization is lossless, `shards` the sets that
    were read.
    """

    held_out: dict[str, str]
    shards: list[str]
    max_windows: int | None = None
    tokenizer: str
    keeps_text: bool
    context: int
    precision: str
    masking: dict[str, Any] | None = None
    """Settings of masking; None for causal models."""
    document_mask: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether attention was limited to a document; the first token of each is then not predicted."""
    begun: dict[str, int] = Field(default={}, exclude_if=lambda value: not value)
    """The shards of each corpus if their first tokens, which are not predicted, are more than a negligible share of its
    tokens: in another number of shards other tokens are predicted.
    """


class ExamplesBasis(Basis):
    """Basis of a fine-tuned model's metrics: a fingerprint of the labelled validation examples, and the settings."""

    examples: str
    metrics: list[str]
    precision: str
    answers: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """For a model that answers: a fingerprint of the answers' text, independent of the tokenizer, if tokenization is
    lossless.
    """
    others: dict[str, "ExamplesBasis"] = Field(default={}, exclude_if=lambda value: not value)
    """Bases of the other splits than the judged one, by split."""


def basis_by_split(
    of: Callable[[str], ExamplesBasis], measured: Iterable[str], judged: str = "validation"
) -> ExamplesBasis:
    """The basis of the `judged` split, with those of the other `measured` splits."""
    return of(judged).model_copy(update={"others": {split: of(split) for split in measured if split != judged}})


def text_basis(
    shards: Sequence[str],
    details: Sequence[Mapping[str, Any]],
    context: int,
    max_windows: int | None,
    precision: str,
    masking: dict[str, Any] | None = None,
    document_mask: bool = False,
) -> TextBasis:
    """The basis of metrics on the held-out text of shard sets, from the details of their manifests.

    All sets must have the same tokenizer.
    """
    totals = [each["totals"] for each in details]
    return TextBasis(
        held_out={each["corpus"]: each["validation_digest"] for each in details},
        shards=sorted(shards),
        max_windows=max_windows,
        tokenizer=details[0]["tokenizer_sha256"],
        keeps_text=all(each["keeps_text"] for each in details)
        and all(each["validation_token_bytes"] >= KEPT * each["validation_bytes"] for each in totals),
        context=context,
        precision=precision,
        masking=masking,
        document_mask=document_mask,
        begun=_shards_that_matter(details),
    )


def _shards_that_matter(details: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The shards of the corpora in which the first tokens of shards are more than a share of `1 - KEPT`, at a number of
    tokens that does not depend on the tokenizer.
    """
    totals = [(each["corpus"], each["num_shards"], each["totals"]) for each in details]
    begun = ((corpus, min(shards, total["validation_documents"]), total) for corpus, shards, total in totals)
    return {
        corpus: most
        for corpus, most, total in begun
        if most > (1 - KEPT) * total["validation_bytes"] / USUAL_TOKEN_BYTES
    }


def split_content(details: Mapping[str, Any], data: Mapping[str, Any], split: str) -> list[Any]:
    """Values that identify the labelled examples of a split, independent of tokenizer and location.

    For examples of words these are the evaluated words, which depend on the tokenizer only if the model does not see
    all of them.

    `details` are those of the encoded set's manifest; `data` is the job's section `data`.
    """
    found = details["splits"][split]
    read = [details["text_columns"], details["label_column"], data["quoting"], data["columns"]]
    parts = [details["task"], details["classes"], *read, found["examples"], found["labelled"]]
    if unseen := found.get("unseen_words"):  # only the seen words are evaluated; which, depends on the truncation
        parts += [unseen, details["max_length"], details["tokenizer"]]
    return [*parts, *_raw_content(details, data, split)]


def _raw_content(details: Mapping[str, Any], data: Mapping[str, Any], split: str) -> list[Any]:
    """Values that identify the raw records of a split."""
    source = details["source"]
    cut = source["validation_cut"] and split != "test"
    content = source["identity"] if split == "test" else without_test(source["identity"])
    if isinstance(content, dict):
        content = content["train" if cut else split]
    return [content, data["validation_fraction"] if cut else None]


def examples_basis(
    details: Mapping[str, Any], data: Mapping[str, Any], split: str, metrics: list[str], precision: str
) -> ExamplesBasis:
    """The basis of metrics on a labelled split; arguments as for `split_content`."""
    return ExamplesBasis(
        examples=fingerprint(split_content(details, data, split)), metrics=metrics, precision=precision
    )


def encoded_basis(
    details: Mapping[str, Any], data: Mapping[str, Any], split: str, precision: str, *more: Any
) -> ExamplesBasis:
    """The basis of metrics on a split of an encoded set, tied to one tokenizer; `more` adds to its identity.

    Arguments as for `split_content`.
    """
    found = [details["task"], details["tokenizer"], *more, *_raw_content(details, data, split)]
    return ExamplesBasis(examples=fingerprint(found), metrics=[], precision=precision)


def answers_basis(details: Mapping[str, Any], data: Mapping[str, Any], split: str, precision: str) -> ExamplesBasis:
    """The basis of metrics on a split of conversations: their answers, as tokens of one tokenizer and chat template.

    For other tokenizers the text is the same if it has the same number of bytes; truncated conversations have fewer.
    Arguments as for `split_content`.
    """
    found, text_bytes = details["splits"][split], details["splits"][split]["answer_bytes"]
    keeps_text = text_bytes and details["keeps_text"] and found["answer_token_bytes"] >= KEPT * text_bytes
    more = (details["context"], found["examples"], found["answer_tokens"])
    basis = encoded_basis(details, data, split, precision, *more)
    if not keeps_text:
        return basis
    answers = fingerprint([found["examples"], text_bytes, *_raw_content(details, data, split)])
    return basis.model_copy(update={"answers": answers})


AnyBasis = TextBasis | ExamplesBasis | HarnessBasis


def facts_of(figure: str, basis: AnyBasis) -> dict[str, Any]:
    """Facts, by name, that must be equal for two metrics to be comparable.

    Bits per byte of a whole text are comparable between tokenizers and contexts, which then count as part of the model.
    A selection of windows depends on the tokens and is other text in other shards. With a document mask the first token
    of each document is not predicted, and its number of bytes depends on the tokenizer.
    """
    if task := task_of(figure):
        return {f"lm-eval's task {task}": (basis.harness or {}).get(task)}
    if isinstance(basis, HarnessBasis):
        return {}
    if isinstance(basis, ExamplesBasis):
        if figure == BITS_PER_BYTE and basis.answers is not None:
            return {"validation answers": basis.answers}
        facts = {"validation examples": basis.examples, "precision": basis.precision}
        own = [metric for metric in basis.metrics if metric.partition(OF_CLASS)[0] == figure]
        return facts if figure == "loss" else {**facts, "metrics": own or basis.metrics}
    text = {f"held-out text of {corpus}": digest for corpus, digest in basis.held_out.items()}
    text |= {f"shards of {corpus}": str(shards) for corpus, shards in basis.begun.items()}
    if basis.document_mask:
        text["document mask"] = "on"
    if figure == BITS_PER_BYTE and basis.max_windows is None and basis.keeps_text:
        return {**text, "tokenizer": basis.tokenizer} if basis.document_mask else text
    read = {"tokenizer": basis.tokenizer, "context": basis.context, "precision": basis.precision}
    chosen = (
        None if basis.max_windows is None else f"{basis.max_windows} windows per corpus of {', '.join(basis.shards)}"
    )
    hidden = {"masking": fingerprint(basis.masking)} if basis.masking else {}
    return {**text, "choice": chosen, **read, **hidden}


def why_incomparable(figure: str, one: AnyBasis | None, other: AnyBasis | None) -> list[str]:
    """Why a metric cannot be compared with another, as `context: 32 here, 64 there`; empty if it can."""
    if one is None or other is None:
        return ["the data of a measurement is not recorded"]
    ours, theirs = ({**facts_of("loss", each), **facts_of(figure, each)} for each in (one, other))
    return list(_differences(facts_of(figure, one), facts_of(figure, other), ours, theirs))


def _differences(
    one: dict[str, Any], other: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]
) -> Iterator[str]:
    """What differs of the facts that count of `one` and the `other`; `ours` and `theirs` are all that is known: a fact
    that counts for one of them alone may be the same for both.
    """
    differ = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    for name in [name for name in differ if ours.get(name) != theirs.get(name)] or differ:
        yield f"{name}: {_short(ours.get(name))} here, {_short(theirs.get(name))} there"


def _short(value: Any) -> str:
    """A value as text; digests are shortened."""
    if value is None:
        return "none"
    return f"{value[:12]}…" if isinstance(value, str) and re.fullmatch("[0-9a-f]{17,}", value) else str(value)

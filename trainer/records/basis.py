"""What figures were measured on, and whether two of them can be compared."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainer.config.evaluation import PREFIX
from trainer.store.manifest import fingerprint
from trainer.store.names import Count, Digest


class Record(BaseModel):
    """Frozen, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskData(Record):
    """A local file of a task's examples: those that are asked, or others, such as the solved ones before them."""

    path: str
    sha256: Digest
    asked: bool


class TaskIdentity(Record):
    """What a task asks, and how: two figures of one name can be compared if these are equal.

    `definition` is the digest of its YAML files and functions, `data` are its local files. One that comes with lm-eval
    has neither: its version tells what it is, and its data is what the hub has under the name.
    """

    definition: Digest | None = None
    data: list[TaskData] = []
    limit: Count | None = None
    few_shot: Count | None = None
    chat_template: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether questions are asked as messages, by the model's own template."""
    lm_eval: str


def task_of(figure: str) -> str | None:
    """The task that a figure is of, by its name; None if it is none of lm-eval."""
    return figure.removeprefix(PREFIX).split("/")[0] if figure.startswith(PREFIX) else None


Pieces = list[tuple[int, int, str]]
"""A file's pieces in order: each its begin, its end and its digest."""

SEVERAL = "dataset_dict.json"
"""What `save_to_disk` writes beside the folders of several splits."""


def by_file(pieces: Iterable[Mapping[str, Any]], name: str = "key") -> dict[str, Pieces]:
    """The pieces of a set's sources.json of each file, by its key or its `path`."""
    files: dict[str, Pieces] = {}
    for piece in sorted(pieces, key=lambda each: (each[name], each["index"])):
        files.setdefault(piece[name], []).append((piece["start"], piece["end"], piece["sha256"]))
    return files


def labelled_digests(identity: Any, paths: Mapping[str, list[str]]) -> dict[str, str]:
    """The digests that make up a labelled set's identity: of files by path, or by split and number if that is not
    known.

    Of a folder that `save_to_disk` wrote, by the way from there; of a data set of the hub, of its splits.
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
    """A labelled set's identity as far as its training and validation splits are read.

    Of a folder that `save_to_disk` wrote with several splits, each lies in a folder of its name.
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
    """A raw file with its size as it lies there, and its digest, or those of its pieces if it was cut."""
    whole = re.fullmatch(r"([0-9a-f]{64}):\d+-\d+", pieces[0][2])
    if whole:  # Parquet, cut between row groups
        return {"path": path, "bytes": file_bytes, "sha256": whole[1]}
    # Of a CSV file's later pieces the digest of the first line comes first.
    cut = [{"start": start, "end": end, "sha256": digest.rpartition(":")[2]} for start, end, digest in pieces]
    rest = {"sha256": cut[0]["sha256"]} if len(cut) == 1 else {"pieces": cut}
    return {"path": path, "bytes": pieces[-1][1], **rest}


BITS_PER_BYTE = "bits_per_byte"

OF_CLASS = " of "
"""Between a metric and the class that its figure is of, where a job names one."""

KEPT = 0.999
"""The share of a text's bytes that its tokens must stand for, so that they are said to tell all of it."""


class Basis(Record):
    """What all have that figures are measured on."""

    harness: dict[str, str] | None = Field(default=None, exclude_if=lambda value: value is None)
    """What each task of lm-eval is, where figures of such tasks stand beside the others."""


class HarnessBasis(Basis):
    """Of figures of lm-eval's tasks, where nothing else was measured."""


class TextBasis(Basis):
    """Of a language model's figures: the held-out text, a digest by corpus, and how the model read it.

    `tokenizer` is the SHA-256 of its tokenizer.json, `keeps_text` whether its tokens stand for all of the text,
    `shards` names the sets that were read.
    """

    held_out: dict[str, str]
    shards: list[str]
    max_windows: int | None = None
    tokenizer: str
    keeps_text: bool
    context: int
    precision: str
    masking: dict[str, Any] | None = None
    """How tokens are hidden; None for models that predict each next token."""
    document_mask: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether attention stayed within a document, of which the first token was then not predicted."""


class ExamplesBasis(Basis):
    """Of a fine-tuned model's figures: a name of the validation examples with their labels, and how figures were
    made.
    """

    examples: str
    metrics: list[str]
    precision: str
    answers: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a model that answers, a name of the text of the answers, whatever its tokenizer, if its tokens stand for all
    of it.
    """
    others: dict[str, "ExamplesBasis"] = Field(default={}, exclude_if=lambda value: not value)
    """What the figures of other splits than the judged one were measured on, by split."""


def basis_by_split(
    of: Callable[[str], ExamplesBasis], measured: Iterable[str], judged: str = "validation"
) -> ExamplesBasis:
    """What the figures of the `judged` split are measured on, and those of the others that were `measured`."""
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
    """What is measured on the held-out text of shard sets, whose manifests have these details.

    All must have been made with the same tokenizer.
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
    )


def split_content(details: Mapping[str, Any], data: Mapping[str, Any], split: str) -> list[Any]:
    """What tells the labelled examples of a split from any others, whatever the tokenizer and wherever they lie.

    Of examples of words, those that are measured: whatever the tokenizer too, if the model sees all.

    `details` are those of the encoded set's manifest, `data` is the job's section on its data.
    """
    found = details["splits"][split]
    read = [details["text_columns"], details["label_column"], data["quoting"], data["columns"]]
    told = [details["task"], details["classes"], *read, found["examples"], found["labelled"]]
    if unseen := found.get("unseen_words"):  # the figures are of the others: which these are depends on how it was cut
        told += [unseen, details["max_length"], details["tokenizer"]]
    return [*told, *_raw_content(details, data, split)]


def _raw_content(details: Mapping[str, Any], data: Mapping[str, Any], split: str) -> list[Any]:
    """What tells the raw records of a split from any others."""
    source = details["source"]
    cut = source["validation_cut"] and split != "test"
    content = source["identity"] if split == "test" else without_test(source["identity"])
    if isinstance(content, dict):
        content = content["train" if cut else split]
    return [content, data["validation_fraction"] if cut else None]


def examples_basis(
    details: Mapping[str, Any], data: Mapping[str, Any], split: str, metrics: list[str], precision: str
) -> ExamplesBasis:
    """What is measured on a labelled split; the arguments are those of `split_content`."""
    return ExamplesBasis(
        examples=fingerprint(split_content(details, data, split)), metrics=metrics, precision=precision
    )


def encoded_basis(
    details: Mapping[str, Any], data: Mapping[str, Any], split: str, precision: str, *told: Any
) -> ExamplesBasis:
    """What is measured on a split of an encoded set, as tokens of one tokenizer; with what is `told` of it besides.

    The arguments are those of `split_content`.
    """
    found = [details["task"], details["tokenizer"], *told, *_raw_content(details, data, split)]
    return ExamplesBasis(examples=fingerprint(found), metrics=[], precision=precision)


def answers_basis(details: Mapping[str, Any], data: Mapping[str, Any], split: str, precision: str) -> ExamplesBasis:
    """What is measured on a split of conversations: their answers, as tokens of one tokenizer with one chat template.

    Whatever the tokenizer, it is the same text if that has as many bytes, which are fewer where conversations are cut.
    The arguments are those of `split_content`.
    """
    found, text_bytes = details["splits"][split], details["splits"][split]["answer_bytes"]
    keeps_text = text_bytes and details["keeps_text"] and found["answer_token_bytes"] >= KEPT * text_bytes
    told = (details["context"], found["examples"], found["answer_tokens"])
    basis = encoded_basis(details, data, split, precision, *told)
    if not keeps_text:
        return basis
    answers = fingerprint([found["examples"], text_bytes, *_raw_content(details, data, split)])
    return basis.model_copy(update={"answers": answers})


AnyBasis = TextBasis | ExamplesBasis | HarnessBasis


def facts_of(figure: str, basis: AnyBasis) -> dict[str, Any]:
    """What must be the same, by name, for a figure to be compared with another.

    The bits a byte of a whole text are comparable between tokenizers: how a model reads a text is then part of what it
    is, and so is its context. A choice of windows is one of tokens, and stands for other text in other shards. With a
    document mask the first token of a document is not predicted: how many bytes that are, the tokenizer decides.
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
    if basis.document_mask:
        text["document mask"] = "on"
    if figure == BITS_PER_BYTE and basis.max_windows is None and basis.keeps_text:
        return {**text, "tokenizer": basis.tokenizer} if basis.document_mask else text
    read = {"tokenizer": basis.tokenizer, "context": basis.context, "precision": basis.precision}
    chosen = None if basis.max_windows is None else f"{basis.max_windows} windows a corpus of {', '.join(basis.shards)}"
    hidden = {"masking": fingerprint(basis.masking)} if basis.masking else {}
    return {**text, "choice": chosen, **read, **hidden}


def why_incomparable(figure: str, one: AnyBasis | None, other: AnyBasis | None) -> list[str]:
    """Why a figure cannot be compared with another, as `context: 32 here, 64 there`; nothing if it can."""
    if one is None or other is None:
        return ["what it was measured on is not recorded"]
    return list(_tell(facts_of(figure, one), facts_of(figure, other)))


def _tell(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield f"{name}: {_short(one.get(name))} here, {_short(other.get(name))} there"


def _short(value: Any) -> str:
    """A value as text, digests by their first digits."""
    if value is None:
        return "none"
    return f"{value[:12]}…" if isinstance(value, str) and re.fullmatch("[0-9a-f]{17,}", value) else str(value)

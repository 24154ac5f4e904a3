"""What a report says of a labelled set: its splits, its classes, and what became of its columns."""

from typing import Any

from trainer.common.formats import count, number, percent, plural, significant
from trainer.registry.content import Block, Section
from trainer.registry.facts import RunFacts
from trainer.registry.tables import Pairs, Table

LABELS = {
    "classification": "ids of classes", "multi-label": "which classes apply", "regression": "numbers",
    "tokens": "the id of each word's class",
}  # fmt: skip
"""What labels become, by task."""


def describe_data(facts: RunFacts, details: dict[str, Any]) -> Section:
    """The section on an encoded set, whose manifest has these details."""
    blocks = [Block(_note(facts, details), _split_table(details))]
    if details["classes"]:
        things, seen = ("Words", " and seen") if details["task"] == "tokens" else ("Examples", "")
        blocks.append(
            Block(f"{things} of each class, and their share of those that are labelled{seen}.", _balance_table(details))
        )
    return Section("Data", [*blocks, Block("What became of the columns.", pairs=_columns(facts, details))])


def _note(facts: RunFacts, details: dict[str, Any]) -> str:
    """Where the data comes from, how it was split and cut, and what casts doubt on its validation."""
    data, across = facts.job["data"], details["duplicates_across"]
    if data["source"] == "hub":
        origin = (
            f"data set {data['path']}{' (' + data['subset'] + ')' if data['subset'] else ''} of the Hugging Face hub"
        )
    else:
        origin = f"data set {details['name']}, {'from ' + data['path'] if data['path'] else data['source'] + ' files'}"
    notes = [f"{'A label for each word' if details['task'] == 'tokens' else details['task'].capitalize()}: {origin}."]
    if details["source"]["validation_cut"]:
        fraction = f"{data['validation_fraction']:g}"
        notes.append(f"A share of {fraction} of the examples is held out for validation, by a hash of their text.")
    if across:
        held_out = plural(details["splits"]["validation"]["examples"], "validation example")
        notes.append(f"{count(across)} of {held_out} are in train as well, so the validation figures flatter.")
    return " ".join(notes)


def _columns(facts: RunFacts, details: dict[str, Any]) -> Pairs:
    length = f", at most {count(details['max_length'])} tokens" if details["max_length"] else ""
    pair = "a pair" if len(details["text_columns"]) > 1 else "words" if details["task"] == "tokens" else "a text"
    name, kind = facts.job["data"]["id_column"], LABELS[details["task"]]
    divider = f"; {details['divider']!r} between its texts" if details["divider"] else ""
    return [
        ("Text", f"{', '.join(details['text_columns'])} → input_ids: {pair}{length}{divider}"),
        ("Padding", f"{details['pad_token']!r}{', its end token: it has no other' if details['pad_is_end'] else ''}"),
        ("Label", f"{details['label_column']} → labels: {kind}"),
        ("Id", f"{name} → id" if name else "the number of the row → id"),
        ("Dropped", ", ".join(details["dropped_columns"]) or "none"),
    ]


def _split_table(details: dict[str, Any]) -> Table:
    """What each split of an encoded set holds."""
    columns = [
        "Split",
        "Examples",
        "Labelled",
        "Tokens",
        "Mean",
        "Longest",
        "Truncated",
        "Share truncated",
        "Bad records",
    ]
    numbers = ("mean", "min", "max") if details["task"] == "regression" else ()
    words = ("words", "unseen_words") if details["task"] == "tokens" else ()
    rows = []
    for name, split in details["splits"].items():
        examples, tokens = split["examples"], split["tokens"]
        target = split.get("target") or {}
        rows.append(
            [
                name, count(examples), count(split["labelled"]), count(tokens), number(tokens / examples, 1),
                count(split["longest"]), count(split["truncated"]), percent(split["truncated"] / examples),
                count(split["bad_records"]), *(significant(target.get(each), 4) for each in numbers),
                *(count(split[each]) for each in words),
            ]
        )  # fmt: skip
    told = [*(f"Target's {each}" for each in numbers), *(["Words", "Words not seen"] if words else [])]
    return Table([*columns, *told], rows)


def _balance_table(details: dict[str, Any]) -> Table:
    """How many examples, or words, of each class a split has, and their share of its labelled ones."""
    splits = {name: split for name, split in details["splits"].items() if split["labelled"]}
    by_words = details["task"] == "tokens"
    wholes = [sum(split["class_counts"].values()) if by_words else split["labelled"] for split in splits.values()]
    rows = [
        [
            name,
            *(
                cell
                for split, whole in zip(splits.values(), wholes, strict=True)
                for cell in _with_share(split["class_counts"][name], whole)
            ),
        ]
        for name in details["classes"]
    ]
    return Table(["Class", *(column for name in splits for column in (name, "Share"))], rows)


def _with_share(part: int, whole: int) -> list[str]:
    return [count(part), percent(part / whole)]

"""Report and model card of a fine-tuned model: what it is, its data, its figures."""

from dataclasses import replace
from typing import Any

from trainer.common.display import Pairs, Table, count, number, percent, score, significant, some
from trainer.config.labelled import BALANCED
from trainer.data.labelled.encoded import find_class_weights
from trainer.evaluation.builtin_metrics import marks_entities
from trainer.kinds.tuning_page import compare_tuning, describe_in_train, describe_tuning, encoded_of
from trainer.records.evaluations import Classification, Result
from trainer.records.plans import TuningPlan
from trainer.registry.content import Block, ReportContent, Section, program
from trainer.registry.facts import RunFacts
from trainer.registry.sections import in_order

USE = """\
inputs = tokenizer({texts}, truncation=True, max_length={length}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
print({answer})"""


USE_OF_WORDS = """\
words = ["The", "words", "of", "the", "text", "."]
inputs = tokenizer(words, is_split_into_words=True, truncation=True, max_length={length}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
labels = {{}}
for place, word in enumerate(inputs.word_ids()):
    if word is not None:  # a word's label is that of its first token
        labels.setdefault(word, model.config.id2label[logits[place].argmax().item()])
print([(words[word], label) for word, label in labels.items()])"""


def describe_model_kind(details: dict[str, Any]) -> str:
    """The kind of model, in words."""
    if details["task"] == "tokens":
        return "token classification"
    several = "multi-label " if details["task"] == "multi-label" else ""
    return several + ("text classification" if details["classes"] else "text regression")


def use_of(facts: RunFacts, details: dict[str, Any]) -> str:
    """A program that loads the model and uses it."""
    length = details["max_length"]
    if details["task"] == "tokens":
        tokenizer = details.get("tokenizer_class", "AutoTokenizer")
        return program(facts, "AutoModelForTokenClassification", USE_OF_WORDS.format(length=length), tokenizer)
    texts = '"The text."' if len(details["text_columns"]) == 1 else '"The first text.", "The second."'
    answer = "logits.item()"
    if details["classes"]:
        chances = "sigmoid()" if details["task"] == "multi-label" else "softmax(-1)"
        answer = f"{{model.config.id2label[i]: p for i, p in enumerate(logits.{chances}.tolist())}}"
    use = USE.format(texts=texts, length=length, answer=answer)
    return program(facts, "AutoModelForSequenceClassification", use)


LABELS = {
    "classification": "ids of classes", "multi-label": "which classes apply", "regression": "numbers",
    "tokens": "the id of each word's class",
}  # fmt: skip
"""How labels are encoded, by task."""


def describe_data(facts: RunFacts, details: dict[str, Any]) -> Section:
    """The section on an encoded set with these manifest details."""
    blocks = [Block(_note(facts, details), _split_table(details))]
    if details["classes"]:
        things, seen = ("Words", " and seen") if details["task"] == "tokens" else ("Examples", "")
        blocks.append(
            Block(f"{things} of each class, and their share of those labelled{seen}.", _balance_table(details))
        )
    return Section("Data", [*blocks, Block("How each column is used.", pairs=_columns(facts, details))])


def _note(facts: RunFacts, details: dict[str, Any]) -> str:
    """Where the data comes from, how it was split and truncated, and reasons to doubt its validation figures."""
    data = facts.job["data"]
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
    return " ".join([*notes, *describe_in_train(details, "example")])


def _columns(facts: RunFacts, details: dict[str, Any]) -> Pairs:
    length = f", at most {count(details['max_length'])} tokens" if details["max_length"] else ""
    pair = "a pair" if len(details["text_columns"]) > 1 else "words" if details["task"] == "tokens" else "a text"
    name, kind = facts.job["data"]["id_column"], LABELS[details["task"]]
    divider = f"; {details['divider']!r} between its texts" if details["divider"] else ""
    return [
        ("Text", f"{', '.join(details['text_columns'])} → input_ids: {pair}{length}{divider}"),
        ("Padding", f"{details['pad_token']!r}{', its end token: it has no other' if details['pad_is_end'] else ''}"),
        ("Label", f"{details['label_column']} → labels: {kind}"),
        ("Id", f"{name} → id" if name else "row number → id"),
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
    extra = [*(f"Target's {each}" for each in numbers), *(["Words", "Words not seen"] if words else [])]
    return Table([*columns, *extra], rows)


def _balance_table(details: dict[str, Any]) -> Table:
    """Examples, or words, of each class in each split, and their share of the split's labelled ones."""
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


MOST_CLASSES = 24
"""With more classes, the most frequent mistakes are shown instead of a confusion matrix."""


def confusion_table(found: Classification, things: str) -> Table:
    """Labels by rows, predictions by columns; with many classes, the most frequent mistakes, counted in `things`."""
    names = [each.name for each in found.classes]
    if len(names) > MOST_CLASSES:
        return _mistake_table(found, names, things)
    rows = [[name, *map(count, row), count(sum(row))] for name, row in zip(names, found.confusion, strict=True)]
    sums = [sum(column) for column in zip(*found.confusion, strict=True)]
    return Table(["Label", *names, "All"], rows, ["All", *map(count, sums), count(sum(sums))], diagonal=True)


def _mistake_table(found: Classification, names: list[str], things: str) -> Table:
    mistakes = [
        (times, label, predicted)
        for label, row in enumerate(found.confusion)
        for predicted, times in enumerate(row)
        if times and label != predicted
    ]
    ranked = sorted(mistakes, key=lambda mistake: -mistake[0])[:MOST_CLASSES]
    rows = [
        [names[label], names[predicted], count(times), percent(times / found.classes[label].support)]
        for times, label, predicted in ranked
    ]
    return Table(["Label", "Predicted", things, "Share of the label"], rows, words=2)


def class_table(found: Classification, of: str = "Class") -> Table:
    """Precision, recall and F1 of each class; `of` is the header of the first column."""
    rows = [
        [each.name, score(each.precision), score(each.recall), score(each.f1), count(each.support)]
        for each in found.classes
    ]
    return Table([of, "Precision", "Recall", "F1", "Support"], rows)


LOSS_UNITS = {
    "classification": "nats an example", "multi-label": "nats a class", "regression": "squared error",
    "tokens": "nats a word",
}  # fmt: skip
"""The unit of the loss, by task."""


def describe_finetuning(facts: RunFacts, plan: TuningPlan) -> ReportContent:
    """The report of a fine-tuning run."""
    _, details = encoded_of(facts)
    task = "token-classification" if details["task"] == "tokens" else "text-classification"  # as the hub calls it
    content = describe_tuning(
        facts, plan, LOSS_UNITS[details["task"]], task, describe_model_kind(details), use_of(facts, details),
        data=describe_data(facts, details), loss=_loss(facts.job["training"], details),
    )  # fmt: skip
    return replace(
        content,
        results=[*content.results, *_classes(facts.evaluation, details)],
        model=[*content.model, _output(details)],
    )


def _output(details: dict[str, Any]) -> tuple[str, str]:
    """The model's outputs, by name."""
    classes: list[str] = details["classes"] or []
    named = some((f"{number} {name}" for number, name in enumerate(classes)), MOST_CLASSES)
    return ("Classes", named) if classes else ("Output", "one number")


def _classes(evaluation: Result | None, details: dict[str, Any]) -> list[Section]:
    """One section per labelled split: the confusion matrix, and the figures of each class or entity type."""
    sections, by_words = [], details["task"] == "tokens"
    things = "Words" if by_words else "Examples"
    for split, found in in_order(evaluation.classification if evaluation else {}).items():
        if by_words and marks_entities(details["classes"]):
            intro = "Figures of each entity type. An entity is found if the model labels all its words with its type."
            sections.append(Section(f"Entities: {split}", [Block(intro, class_table(found, "Type"))]))
            continue
        blocks = [Block("Figures of each class.", class_table(found))]
        if found.confusion:  # exactly one class per example
            few = len(found.classes) <= MOST_CLASSES
            note = f"{things} by their label (rows) and prediction (columns)." if few else "The most frequent mistakes."
            blocks.insert(0, Block(note, confusion_table(found, things)))
        sections.append(Section(f"Classes: {split}", blocks))
    return sections


def _loss(training: dict[str, Any], details: dict[str, Any]) -> Pairs:
    """Unusual settings of the loss; runs from before these settings existed do not record them."""
    pairs, wanted = [], training.get("class_weights")
    if wanted:
        classes: list[str] = details["classes"]
        weights = find_class_weights(wanted, classes, details["splits"]["train"]["class_counts"])
        named = [f"{name} {weight:.4g}" for name, weight in zip(classes, weights, strict=True)]
        balanced = f"{BALANCED}: " if wanted == BALANCED else ""
        pairs.append(("Class weights", f"{balanced}{some(named, MOST_CLASSES)}"))
    if smoothing := training.get("label_smoothing"):
        pairs.append(("Label smoothing", f"{smoothing:g}"))
    return pairs


COMPARED = compare_tuning("labelled sets", unit=lambda run: LOSS_UNITS[run.job["data"]["task"]])

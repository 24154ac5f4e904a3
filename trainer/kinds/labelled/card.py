"""The card of a fine-tuned model: what it is, its figures, and how to use it."""

from typing import Any

from trainer.common.formats import count, plural, short
from trainer.records.evaluations import Result
from trainer.records.plans import FinetunePlan
from trainer.registry.content import Card
from trainer.registry.facts import RunFacts
from trainer.registry.sections import hub_metric, in_order, index_entry
from trainer.registry.summary import loaded_beside
from trainer.store.names import FINAL

USE = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "{folder}"  # the folder that holds this card
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder)

inputs = tokenizer({texts}, truncation=True, max_length={length}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
print({answer})"""


USE_OF_WORDS = """\
import torch
from transformers import AutoModelForTokenClassification, {tokenizer}

folder = "{folder}"  # the folder that holds this card
tokenizer = {tokenizer}.from_pretrained(folder)
model = AutoModelForTokenClassification.from_pretrained(folder)

words = ["The", "words", "of", "the", "text", "."]
inputs = tokenizer(words, is_split_into_words=True, truncation=True, max_length={length}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
labels = {{}}
for place, word in enumerate(inputs.word_ids()):
    if word is not None:  # a word's label is that of its first token
        labels.setdefault(word, model.config.id2label[logits[place].argmax().item()])
print([(words[word], label) for word, label in labels.items()])"""


def make_card(
    facts: RunFacts,
    plan: FinetunePlan,
    evaluation: Result | None,
    figures: list[str],
    details: dict[str, Any],
) -> Card:
    job, start = facts.job, facts.job["model"]["pretrained"]
    several, by_words = details["task"] == "multi-label", details["task"] == "tokens"
    chances = "sigmoid()" if several else "softmax(-1)"
    what = ("multi-label " if several else "") + ("text classification" if details["classes"] else "text regression")
    if by_words:
        what = "token classification"
    summary = (
        f"A {what} model ({facts.model_config.get('model_type', 'unknown family')}) of "
        f"{short(facts.whole_parameters)} parameters, fine-tuned from {start} on {count(plan.examples)} examples in "
        f"{plural(facts.steps, 'optimizer step')}"
    )
    metrics = list(dict.fromkeys(hub_metric(figure) for figure in figures if figure != "loss"))
    matter = {
        **({"datasets": [job["data"]["path"]]} if job["data"]["source"] == "hub" else {}),
        **({"metrics": metrics} if metrics else {}),
    }
    use = (USE_OF_WORDS if by_words else USE).format(
        tokenizer=details.get("tokenizer_class", "AutoTokenizer"),
        folder=f"{facts.key}/{FINAL}",
        texts='"The text."' if len(details["text_columns"]) == 1 else '"The first text.", "The second."',
        length=details["max_length"],
        answer=(
            f"{{model.config.id2label[i]: p for i, p in enumerate(logits.{chances}.tolist())}}"
            if details["classes"]
            else "logits.item()"
        ),
    )  # fmt: skip
    return Card(
        _hub_task(details),
        what.replace(" ", "-"),
        matter,
        _index(facts, evaluation, details),
        summary,
        loaded_beside(use, facts),
    )


def _hub_task(details: dict[str, Any]) -> str:
    return "token-classification" if details["task"] == "tokens" else "text-classification"


def _index(facts: RunFacts, evaluation: Result | None, details: dict[str, Any]) -> list[dict[str, Any]]:
    """The finished model's figures on each labelled split."""
    if evaluation is None:
        return []
    data = facts.job["data"]
    of_hub = data["source"] == "hub"
    named = {"name": details["name"], "type": data["path"] if of_hub else details["name"], "config": data["subset"]}
    return [
        index_entry(
            _hub_task(details),
            {**named, "split": split},
            {figure: (evaluation.label(figure), value) for figure, value in scores.figures.items() if figure != "loss"},
        )
        for split, scores in in_order(evaluation.groups).items()
    ]

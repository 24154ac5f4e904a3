"""What the card of a fine-tuned model says of it, and how to use it."""

from typing import Any

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


def tell_model(details: dict[str, Any]) -> str:
    """What kind of model it is."""
    if details["task"] == "tokens":
        return "token classification"
    several = "multi-label " if details["task"] == "multi-label" else ""
    return several + ("text classification" if details["classes"] else "text regression")


def use_of(details: dict[str, Any]) -> str:
    """A program that loads the model from `{folder}`."""
    chances = "sigmoid()" if details["task"] == "multi-label" else "softmax(-1)"
    return (USE_OF_WORDS if details["task"] == "tokens" else USE).format(
        tokenizer=details.get("tokenizer_class", "AutoTokenizer"),
        folder="{folder}",
        texts='"The text."' if len(details["text_columns"]) == 1 else '"The first text.", "The second."',
        length=details["max_length"],
        answer=(
            f"{{model.config.id2label[i]: p for i, p in enumerate(logits.{chances}.tolist())}}"
            if details["classes"]
            else "logits.item()"
        ),
    )  # fmt: skip


def hub_task(details: dict[str, Any]) -> str:
    """The hub's name of what the model does."""
    return "token-classification" if details["task"] == "tokens" else "text-classification"

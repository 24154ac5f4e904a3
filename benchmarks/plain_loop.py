"""The plain training loop of the Hugging Face course for a labelled task, the baseline for fine-tuning."""

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import pearsonr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

RATE, BATCH, EPOCHS = 5e-5, 8, 3


class Task(NamedTuple):
    """A labelled task: the columns of its texts, and its number of classes; 1 for regression."""

    name: str
    text_columns: list[str]
    labels: int = 2


TASKS = {
    "cola": Task("cola", ["sentence"]),
    "mrpc": Task("mrpc", ["sentence1", "sentence2"]),
    "stsb": Task("stsb", ["sentence1", "sentence2"], labels=1),
}
"""Three of GLUE's small tasks, each a folder with train.tsv and validation.tsv; quote characters are text."""


def job_values(task: Task, train: str, validation: str, model: str, seed: int, store: str, run: str) -> dict[str, Any]:
    """The same settings as a job of headrace."""
    return {
        "store": store,
        "run": run,
        "data": {
            "name": task.name,
            "source": "csv",
            "quoting": False,
            "train": [train],
            "validation": [validation],
            "text_columns": task.text_columns,
            "task": "regression" if task.labels == 1 else "classification",
        },
        "model": {"pretrained": model},
        "training": {"epochs": EPOCHS, "global_batch": BATCH, "learning_rate": RATE, "seed": seed},
    }


def train_plainly(
    task: Task, train: str, validation: str, model_folder: str, seed: int, cache: str
) -> dict[str, float]:
    """Train with random batches of 8 padded to their longest, AdamW, a linear schedule and no clipping.

    Returns the validation figures.
    """
    import torch
    from datasets import load_dataset
    from torch.utils.data import DataLoader
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    files = {"train": train, "validation": validation}
    raw = load_dataset("csv", data_files=files, sep="\t", quoting=3, cache_dir=cache)
    sets = raw.map(
        lambda rows: tokenizer(*(rows[column] for column in task.text_columns), truncation=True), batched=True
    )
    sets = sets.rename_column("label", "labels")
    sets = sets.remove_columns(
        [c for c in sets["train"].column_names if c not in (*tokenizer.model_input_names, "labels")]
    )
    collate = DataCollatorWithPadding(tokenizer)
    batches = DataLoader(sets["train"], batch_size=BATCH, shuffle=True, collate_fn=collate)
    torch.manual_seed(seed)  # the same new head as in other loops with this seed
    model = AutoModelForSequenceClassification.from_pretrained(
        model_folder, num_labels=task.labels, dtype=torch.float32
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = get_scheduler("linear", optimizer, 0, EPOCHS * len(batches))
    model.train()
    for _ in range(EPOCHS):
        for batch in batches:
            if task.labels == 1:
                batch["labels"] = batch["labels"].float()
            model(**batch.to(device)).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    labels: list[float] = []
    logits: list[list[float]] = []
    for batch in DataLoader(sets["validation"], batch_size=BATCH, collate_fn=collate):
        labels += batch.pop("labels").tolist()
        with torch.no_grad():
            logits += model(**batch.to(device)).logits.tolist()
    return figures_of(task, np.array(logits), np.array(labels))


def figures_of(task: Task, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The task's usual figures from logits of shape [N, C], the deciding one first."""
    if task.labels == 1:
        return {"pearsonr": float(pearsonr(logits[:, 0], labels)[0])}
    predicted = logits.argmax(axis=1)
    if task.name == "cola":
        return {"matthews_correlation": float(matthews_corrcoef(labels, predicted))}
    return {"accuracy": float(accuracy_score(labels, predicted)), "f1": float(f1_score(labels, predicted))}

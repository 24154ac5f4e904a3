"""`transformers.Trainer` on windows in a file: `python -m benchmarks.goodput_trainer DATA FOLDER STEPS SAVE_EVERY`.

benchmarks/goodput.py kills this process. It resumes from its newest checkpoint and records each step in metrics.jsonl.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from trainer.config.files import read_values


class Telling(TrainerCallback):
    """Records the starting step and each step."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._tell(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._tell(state.global_step)

    def _tell(self, step: int) -> None:
        self._file.write(json.dumps({"kind": "train", "step": step}) + "\n")


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Windows of tokens that are also their labels."""

    def __init__(self, path: Path) -> None:
        self._windows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        window = torch.from_numpy(self._windows[number].astype(np.int64))
        return {"input_ids": window, "labels": window}


def main(data: str, folder: str, steps: str, save_every: str) -> None:
    """Train, resuming from the newest checkpoint if there is one, and save the model."""
    values = read_values("configs/quickstart.yaml", [])
    training = values["training"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(**values["model"]["config"], vocab_size=values["data"]["tokenizer"]["vocab_size"])
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=training["global_batch"], max_steps=int(steps),
        learning_rate=training["learning_rate"], lr_scheduler_type="cosine", warmup_steps=training["warmup_steps"],
        weight_decay=0.1, logging_steps=1, save_steps=int(save_every), save_total_limit=2, report_to=[],
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(
        AutoModelForCausalLM.from_config(config), arguments, train_dataset=Windows(Path(data, "windows.npy")),
        callbacks=[Telling(Path(folder, "metrics.jsonl"))],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    trainer.save_model(f"{folder}/final")


if __name__ == "__main__":
    main(*sys.argv[1:])

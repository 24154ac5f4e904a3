"""Losses of instruction tuning against trl's `SFTTrainer`, on the same conversations in the same order.

    python -m benchmarks.chat_against_trl     needs trl, which is not a dependency: pip install -c constraints.txt trl

Twenty steps of a small Llama in float32 on the CPU. trl gets the messages, masks them by the template's markers, and
uses its own loop, optimizer and schedule. Exits with 1 if losses differ by 1e-4 or more.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.trainer.chats import MARKED, chat_job, chat_model, write_chats
from trainer.common.progress import silent
from trainer.kinds.chat.workload import Chat
from trainer.pipelines.any_kind import train
from trainer.records.steps import here
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

STEPS, BATCH, RATE = 20, 4, 1e-3
TOLERANCE = 1e-4


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chats, model = write_chats(folder / "chats"), chat_model(folder / "model")
        ours, order = losses_of_headrace(chats, model, folder / "store")
        theirs = losses_of_trl([conversations(chats)[number] for number in order], model, folder / "trl")
    print(f"{'step':>4} {'headrace':>12} {'trl':>12} {'difference':>12}")
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        print(f"{step:>4} {one:>12.6f} {other:>12.6f} {one - other:>12.2e}")
    worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    print(f"largest difference {worst:.2e}")
    return int(not worst < TOLERANCE)


def losses_of_headrace(chats: Path, model: Path, store: Path) -> tuple[list[float], list[int]]:
    """The losses of the steps, and the conversations' numbers in training order."""
    changes = {"training__epochs": None, "training__max_steps": STEPS, "training__global_batch": BATCH}
    job = chat_job(chats, store, model, **changes, data__packing=False, training__learning_rate=RATE)
    run = train(job, silent())
    work = Chat(job, Store(job.store), here(silent())("encode", job), 1)
    assert work.plan.steps_per_epoch > STEPS, "trl goes through the conversations once"
    order = [int(example) for step in range(STEPS) for example in work.order.examples(step)]
    return [each["loss"] for each in read_records(Store(job.store), run.key) if each["kind"] == "train"], order


def conversations(chats: Path) -> list[dict[str, Any]]:
    """The training records, all in the form of messages."""
    rows = [json.loads(line) for line in (chats / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{"messages": row["messages"] if "messages" in row else as_messages(row)} for row in rows]


def as_messages(row: dict[str, str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]


def losses_of_trl(rows: list[dict[str, Any]], model: Path, output: Path) -> list[float]:
    """`SFTTrainer`'s losses, recorded in its step because its log rounds them."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    found: list[float] = []

    class InOrder(SFTTrainer):  # type: ignore[misc]
        """Reads the conversations in order and records the losses."""

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def training_step(self, *inputs: Any, **named: Any) -> Any:
            loss = super().training_step(*inputs, **named)
            found.append(float(loss.detach()))
            return loss

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = MARKED
    options = SFTConfig(
        output_dir=str(output), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=RATE,
        weight_decay=0.01,
        adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0, lr_scheduler_type="linear",
        warmup_steps=0,
        assistant_only_loss=True, packing=False, max_length=256, bf16=False, use_cpu=True, gradient_checkpointing=False,
        report_to="none", save_strategy="no", disable_tqdm=True, optim="adamw_torch", dataloader_num_workers=0,
    )  # fmt: skip
    learner = AutoModelForCausalLM.from_pretrained(model)
    InOrder(model=learner, args=options, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train()
    return found


if __name__ == "__main__":
    sys.exit(main())

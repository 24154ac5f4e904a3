"""Preference tuning against trl's trainers: the same pairs in the same order, with all weights and with an adapter.

    python -m benchmarks.preference_against_trl needs trl, which is not a dependency: pip install -c constraints.txt trl

Twenty steps of a small Llama in float32 on the CPU for each loss. trl gets the messages, and uses its own tokenization,
loop, optimizer and schedule. Exits with 1 if any of these differ by 1e-5 or more:

- the losses of all steps;
- for dpo and ipo, the reference model's log-probabilities, relative to those that trl computes beforehand, and to those
  of a plain loop over single answers with transformers only.

The ids, and which of them are trained, must be equal. The template used here writes only the end-of-document token
after an answer. With other templates, trl counts text after the end of an answer (ChatML's line break) as part of it,
and `CPOTrainer` and `ORPOTrainer` append the end-of-document token; headrace's answers have the same tokens as in
instruction tuning. By default, trl does not train the embedding of the padding token.

Other differences of trl (1.16):

- dpo: no label smoothing, but two losses of which it is a sum;
- simpo: `CPOTrainer` without a loss of the chosen answers;
- orpo: its loss of the chosen answers covers prompt and answer, as a mean over a batch's tokens. It is replaced by the
  paper's (arXiv:2403.07691, equation 6: a mean over an answer's tokens, then over pairs), as a plain formula. The
  odds-ratio term is trl's.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from numpy.typing import ArrayLike, NDArray
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from tests.support import cpu_runtime
from tests.trainer.adapted_runs import LORA
from tests.trainer.chats import LLAMA2, chat_model
from tests.trainer.preferences import plain_sum, preference_job, write_preferences
from trainer.common.progress import silent
from trainer.data.chat.encoded import open_chat
from trainer.data.encoded import IGNORED
from trainer.data.splits import TRAIN
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.reference import open_reference
from trainer.kinds.preference.workload import Preference
from trainer.models.adapters import adapter_tensors
from trainer.models.weights import PREFIX
from trainer.pipelines.any_kind import train
from trainer.records.steps import here
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

FUNCTIONS, STEPS, BATCH, CONTEXT = 240, 20, 4, 256
RATE, ADAPTERS_RATE = 1e-3, 1e-2
TOLERANCE = 1e-5

SMOOTHING = 0.1
BEFORE = {"precompute_ref_log_probs": True}

LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpo": ({"loss": "dpo"}, {"loss_type": "sigmoid", **BEFORE}),
    # Of a margin m with l = log sigmoid, `sigmoid` is -l(m), `robust` (e l(-m) - (1 - e) l(m)) / (1 - 2 e).
    "dpo, smoothed": (
        {"loss": "dpo", "label_smoothing": SMOOTHING},
        {
            "loss_type": ["sigmoid", "robust"], "loss_weights": [2 * (1 - SMOOTHING), -(1 - 2 * SMOOTHING)],
            "label_smoothing": SMOOTHING, **BEFORE,
        },
    ),
    # With beta 0.1, losses begin at 25, where the spacing of float32 is 2e-6.
    "ipo": ({"loss": "ipo", "beta": 0.5}, {"loss_type": "ipo", **BEFORE}),
    "simpo": ({"loss": "simpo", "gamma": 1.0}, {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 1.0}),
    "orpo": ({"loss": "orpo"}, {}),
}  # fmt: skip
"""Settings of a job's training and of trl's trainer, which uses the job's beta."""


class Made(NamedTuple):
    """Results of the steps: their losses; ids and labels of both conversations of each pair; the reference's
    log-probabilities of the answers, of shape [N, 2], if the loss needs them.
    """

    losses: list[float]
    tokens: list[tuple[list[int], list[int]]]
    reference: NDArray[np.float64] | None


def main() -> int:
    disable_progress_bar()
    cpu_runtime()
    print(f"{'loss':<14} {'trained':<8} {'first':>9} {'last':>9} {'losses':>9} {'reference':>10} {'plain loop':>11}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_preferences(folder / "pairs", FUNCTIONS)
        chat_model(folder / "model", template=LLAMA2)
        equal = [compare(loss, adapted, folder) for loss in LOSSES for adapted in (False, True)]
    return int(not all(equal))


def compare(loss: str, adapted: bool, folder: Path) -> bool:
    """Print a row of the table; return whether all its figures agree."""
    settings, options = LOSSES[loss]
    job = preference_job(
        folder / "pairs", folder / "store", folder / "model", data__context=CONTEXT,
        model__lora=LORA if adapted else None,
        training__epochs=None, training__max_steps=STEPS, training__global_batch=BATCH,
        training__learning_rate=ADAPTERS_RATE if adapted else RATE,
        **{f"training__{name}": value for name, value in settings.items()},
    )  # fmt: skip
    ours, rows, adapter = steps_of_headrace(job, folder / "pairs" / "train.jsonl")
    theirs = steps_of_trl(job, rows, adapter, {"output_dir": str(folder / "trl"), **options})
    differences = [largest(ours.losses, theirs.losses)]
    if ours.reference is not None and theirs.reference is not None:
        plain = plain_reference(folder / "model", theirs)
        differences += [largest(ours.reference / other, 1) for other in (theirs.reference, plain)]
    same = ours.tokens == theirs.tokens
    print(
        f"{loss:<14} {'adapter' if adapted else 'all':<8} {ours.losses[0]:>9.6f} {ours.losses[-1]:>9.6f} "
        + " ".join(f"{each:>{width}.1e}" for each, width in zip(differences, (9, 10, 11), strict=False))
        + ("" if same else "  other tokens"),
        flush=True,
    )
    return same and all(each < TOLERANCE for each in differences)


def largest(one: ArrayLike, other: ArrayLike) -> float:
    """The largest difference."""
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def plain_reference(model: Path, made: Made) -> NDArray[np.float64]:
    """log p of both answers of each pair, for trl's tokens, one answer at a time."""
    plain = AutoModelForCausalLM.from_pretrained(model)
    sums = [plain_sum(plain, torch.tensor(ids), torch.tensor(labels) != IGNORED) for ids, labels in made.tokens]
    return np.array(sums).reshape(-1, 2)


def steps_of_headrace(
    job: PreferenceJob, records: Path
) -> tuple[Made, list[dict[str, Any]], dict[str, torch.Tensor] | None]:
    """The steps; the records in training order; and the initial adapter, with peft's names."""
    run, store = train(job, silent()), Store(job.store)
    data = here(silent())("encode", job)
    work, split, reference = (
        Preference(job, store, data, 1),
        open_chat(store, data.key).splits[TRAIN],
        open_reference(store, job, data.key),
    )
    assert work.plan.steps_per_epoch > STEPS, "each batch has as many pairs"
    order = [int(pair) for step in range(STEPS) for pair in work.order.examples(step)]
    conversations = [split.read(2 * pair + place) for pair in order for place in (0, 1)]
    made = Made(
        [each["loss"] for each in read_records(store, run.key) if each["kind"] == "train"],
        [(ids.tolist(), np.where(answered, ids, IGNORED).tolist()) for ids, answered in conversations],
        None if reference is None else reference[TRAIN][order],
    )
    rows = [as_messages(json.loads(line)) for line in records.read_text(encoding="utf-8").splitlines()]
    adapter = adapter_tensors(work.load_model(None)) if job.model.lora else None
    return (
        made,
        [rows[pair] for pair in order],
        adapter and {f"{PREFIX}{name}": each for name, each in adapter.items()},
    )


def as_messages(record: dict[str, str]) -> dict[str, Any]:
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    return {name: [{"role": role, "content": record[name]}] for name, role in roles.items()}


def steps_of_trl(
    job: PreferenceJob, rows: list[dict[str, Any]], adapter: dict[str, torch.Tensor] | None, options: dict[str, Any]
) -> Made:
    """The steps of trl's trainer for a job's loss; losses are recorded in its step, because its log rounds them."""
    trainer, config = trainer_of(job.training.loss)
    settings = config(
        beta=job.training.beta, max_steps=STEPS, per_device_train_batch_size=BATCH,
        learning_rate=job.training.learning_rate, weight_decay=0.01,
        adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0, lr_scheduler_type="linear",
        warmup_steps=0,
        max_length=CONTEXT, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, optim="adamw_torch", dataloader_num_workers=0,
        **options,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(job.model.pretrained)
    tokenizer.pad_token = tokenizer.eos_token
    learner = AutoModelForCausalLM.from_pretrained(job.model.pretrained)
    setattr(learner.get_input_embeddings(), "padding_idx", None)  # noqa: B010 - it is also the first token of texts
    lora = LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")
    learning = trainer(
        model=learner, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        peft_config=lora if adapter else None,
    )  # fmt: skip
    learning.remove_callback(PrinterCallback)
    if adapter:
        assert get_peft_model_state_dict(learning.model).keys() == adapter.keys(), "the same layers are adapted"
        set_peft_model_state_dict(learning.model, adapter)
    learning.train()
    given = learning.train_dataset
    sums = [[row["ref_chosen_logps"], row["ref_rejected_logps"]] for row in given if "ref_chosen_logps" in row]
    tokens = [trl_tokens(row, answer) for row in given for answer in ("chosen", "rejected")]
    return Made(learning.losses, tokens, np.array(sums) if sums else None)


def trl_tokens(row: dict[str, Any], answer: str) -> tuple[list[int], list[int]]:
    """Ids and labels of a conversation, from the format of either of trl's trainers."""
    if "prompt_ids" not in row:
        return row[f"{answer}_input_ids"], row[f"{answer}_labels"]
    asked, said = row["prompt_ids"], row[f"{answer}_ids"]
    return asked + said, [IGNORED] * len(asked) + said


def trainer_of(loss: str) -> tuple[Any, Any]:
    """trl's trainer for a loss, which records the losses of its steps, and the class of its settings."""
    from trl import DPOConfig, DPOTrainer
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    class OfThePaper(ORPOTrainer):  # type: ignore[misc]
        """Uses the paper's loss of the chosen answers."""

        def concatenated_forward(self, *inputs: Any) -> Any:
            chosen, *others, _ = super().concatenated_forward(*inputs)
            return chosen, *others, -chosen.mean()

    others = {"simpo": (CPOTrainer, CPOConfig), "orpo": (OfThePaper, ORPOConfig)}
    trainer, config = others.get(loss, (DPOTrainer, DPOConfig))

    class InOrder(trainer):  # type: ignore[misc,valid-type]
        """Reads the pairs in order and records the losses."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.losses: list[float] = []

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def training_step(self, *inputs: Any, **named: Any) -> Any:
            loss = super().training_step(*inputs, **named)
            self.losses.append(float(loss.detach()))
            return loss

    return InOrder, config


if __name__ == "__main__":
    sys.exit(main())

"""Memory per rank and disk space of sharded models with billions of parameters. Nothing is allocated."""

from typing import NamedTuple

from transformers import LlamaConfig, PretrainedConfig

from trainer.common.display import size
from trainer.config.training import TrainingConfig
from trainer.models.causal import count_units, sketch_model
from trainer.preflight.memory import WEIGHT_BYTES, activation_bytes, divide, guess_activations
from trainer.preflight.resources import run_bytes
from trainer.training.step import state_bytes

FAMILY = {
    "7B": LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000
    ),
    "70B": LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=32000,
    ),
}  # fmt: skip
"""The shapes of Llama 2 (Touvron et al., 2023)."""

TRAINING = TrainingConfig(
    max_steps=1, context=4096, global_batch=64, micro_batch=1, precision="bf16", sharding="fsdp",
    gradient_checkpointing=True,
    sum_each_micro_batch=True,
)  # fmt: skip
"""Windows of 4096 tokens, one per rank at a time."""


class Scale(NamedTuple):
    """Bytes of a rank's GPU memory in training, of host memory for a save's copies, and of its part of a checkpoint;
    of a whole checkpoint, of all checkpoints that a run keeps, and of its final model."""

    device: int
    copies: int
    part: int
    checkpoint: int
    kept: int
    final: int


def plan_scale(config: PretrainedConfig, training: TrainingConfig, ranks: int) -> Scale:
    """The bytes needed to train a model on a number of ranks with one GPU each."""
    model = sketch_model(config)
    units, state = count_units(model), state_bytes(model, training)
    shares = divide(training, units, ranks, state)
    checkpoint = WEIGHT_BYTES * units.parameters + state
    activations = activation_bytes(
        training, training.context, config, ranks, guess_activations(config, training), gpu=True
    )
    return Scale(
        device=shares.state + shares.gathered + shares.accumulated + activations,
        copies=shares.copies,
        part=shares.copies,
        checkpoint=checkpoint,
        kept=run_bytes(training, checkpoint, steps=None, epochs=0, final=units.parameters),
        final=WEIGHT_BYTES * units.parameters,
    )


def table() -> list[str]:
    """The plans of both models on 8 and 64 ranks, as lines of a Markdown table."""
    lines = [
        "| Model | Ranks | A rank's GPU | A rank's copies | A rank's part | A checkpoint | A run keeps | The final "
        "model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, config in FAMILY.items():
        for ranks in (8, 64):
            lines.append(
                f"| {name} | {ranks} | {' | '.join(size(each) for each in plan_scale(config, TRAINING, ranks))} |"
            )
    return lines

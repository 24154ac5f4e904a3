"""The schema of what all training has: how long, in what steps and how carefully."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config.optimizers import MuonConfig
from trainer.config.schema import Device, Precision, Schema

Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "warmup_stable_decay",
]  # fmt: skip

WHOLE_MATRICES = {"adafactor": "adafactor's factors are of", "muon": "muon orthogonalises"}
"""Optimizers that cannot step on some rows of a matrix, and why."""


class OptimizationConfig(Schema):
    """How long, in what steps and how carefully a model is trained: the same for every kind of job."""

    epochs: int | None = Field(default=None, ge=1, description="passes over all samples; or give max_steps")
    max_steps: int | None = Field(default=None, ge=1, description="optimizer steps; or give epochs")
    global_batch: int = Field(default=8, ge=1, description="samples an optimizer step, over all ranks and micro-batches")
    micro_batch: int | None = Field(
        default=None, ge=1, description="samples a forward pass on one rank; default: the rank's whole share"
    )
    optimizer: Literal["adamw", "adafactor", "sgd", "muon"] = Field(
        default="adamw",
        description="optimizer, as torch.optim has it; sgd takes beta1 as its momentum; muon is for the matrices of a model's "
        "blocks, and adamw for the rest",
    )
    muon: MuonConfig | None = Field(default=None, description="optimizer muon: its settings")
    learning_rate: float = Field(default=5e-4, gt=0, description="peak learning rate")
    weight_decay: float = Field(default=0.1, ge=0, description="decay of weight matrices; biases and norms are spared")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the gradient's mean")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the gradient's square")
    epsilon: float = Field(default=1e-8, gt=0, description="AdamW's epsilon")
    schedule: Schedule = Field(
        default="cosine", description="learning-rate schedule, by its name in transformers.get_scheduler"
    )
    schedule_options: dict[str, float | int | str] = Field(
        default={}, description="the schedule's own settings, such as num_cycles, min_lr_rate or num_decay_steps"
    )
    warmup_steps: int = Field(default=0, ge=0, description="optimizer steps of linear warm-up")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip the gradient's norm; null: no clipping")
    precision: Precision = "fp32"
    gradient_checkpointing: bool = Field(default=False, description="recompute activations to save memory")
    compile: bool = Field(default=False, description="torch.compile the model together with its loss")
    sharding: Literal["none", "fsdp"] = Field(
        default="none",
        description="none: every rank holds the model; fsdp: weights, gradients and optimizer are divided among the ranks",
    )
    cpu_offload: bool = Field(
        default=False, description="sharding fsdp: weights and optimizer lie in the host's memory, and are updated there"
    )
    sum_each_micro_batch: bool = Field(
        default=False,
        description="sharding fsdp: sum gradients over the ranks after each micro-batch, not after the last: slower, and "
        "without memory for the gradients of the whole model",
    )
    deterministic: bool = Field(
        default=False, description="the same bits every time on a GPU too; an operation that cannot is an error"
    )
    device: Device = "auto"
    processes: int | None = Field(
        default=None, ge=1, description="ranks the pipeline starts, on this machine or the engine's; default: one a GPU, or one"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="decides initial weights, data order and dropout")
    log_every: int = Field(default=10, ge=1, description="steps between metric records")
    evaluate_every: int | None = Field(default=None, ge=1, description="steps between evaluations, besides each epoch's end")
    save_every: int | None = Field(default=None, ge=1, description="steps between checkpoints, besides each epoch's end")
    keep_last: int = Field(default=2, ge=1, description="newest checkpoints kept, besides the best and the epochs'")
    keep_epochs: int | None = Field(
        default=None, ge=0, description="newest epochs' checkpoints kept, each of the end of an epoch; default: all of them"
    )
    early_stopping: int | None = Field(
        default=None, ge=1, description="stop after this many evaluations in a row without a new best; default: never"
    )
    final: Literal["last", "best"] = Field(default="last", description="the checkpoint that becomes the final model")

    @model_validator(mode="after")
    def _length_and_batches(self) -> Self:
        if (self.epochs is None) == (self.max_steps is None):
            raise ValueError("give either epochs or max_steps")
        if self.micro_batch is not None and self.global_batch % self.micro_batch:
            raise ValueError(f"micro_batch {self.micro_batch} does not divide global_batch {self.global_batch}")
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is beyond max_steps {self.max_steps}")
        return self

    @model_validator(mode="after")
    def _shardable(self) -> Self:
        for name in ("cpu_offload", "sum_each_micro_batch"):
            if getattr(self, name) and self.sharding == "none":
                raise ValueError(f"{name} goes with sharding: fsdp")
        if self.optimizer in WHOLE_MATRICES and self.sharding == "fsdp":
            reason = WHOLE_MATRICES[self.optimizer]
            raise ValueError(f"sharding: fsdp goes with optimizer adamw or sgd: {reason} whole matrices")
        return self

    @model_validator(mode="after")
    def _settings_of_the_optimizer(self) -> Self:
        if self.muon is not None and self.optimizer != "muon":
            raise ValueError(f"muon goes with optimizer: muon, not {self.optimizer!r}")
        return self

"""The schemas of training: how long and how carefully, optimizers, windows, masking, and trackers."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trainer.config.schema import Device, Precision, Schema


class MaskingConfig(Schema):
    """Tokens that are hidden and predicted (Devlin et al. 2018): most become the mask token, some another one, some
    stay.
    """

    fraction: float = Field(default=0.15, gt=0, lt=1, description="share of a window's tokens that are predicted")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these that the mask token stands for")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="share of these that a random token stands for; the rest stay as they are"
    )
    whole_words: bool = Field(default=False, description="choose words, and predict all tokens of each")
    mask_token: str | None = Field(
        default=None, description="the tokenizer's mask token; default: [MASK] or <mask>, whichever it has"
    )

    @model_validator(mode="after")
    def _shares_of_one(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share {self.mask_share} and random_share {self.random_share} are more than 1 together"
            )
        return self


class MuonConfig(Schema):
    """Muon, which takes the weight matrices of a model's blocks; embeddings, head, norms and biases are AdamW's."""

    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="peak learning rate of the matrices, on the same schedule; default: that of training",
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="decay of the gradient's mean")
    nesterov: bool = Field(default=True, description="Nesterov's momentum")
    ns_steps: int = Field(
        default=5, ge=1, lt=100, description="iterations of Newton and Schulz that orthogonalise an update"
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description="how the rate follows a matrix's shape: match_rms_adamw: updates as large as AdamW's, whose rate "
        "and decay then serve for both (Liu et al. 2025); original: as Jordan et al. have it, with rates of some 0.02",
    )


Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "warmup_stable_decay",
]  # fmt: skip

WHOLE_MATRICES = {"adafactor": "adafactor's factors are of", "muon": "muon orthogonalises"}
"""Optimizers that cannot step on some rows of a matrix, and why."""

WITHOUT = {"adafactor": ("beta1", "beta2", "epsilon"), "sgd": ("beta2", "epsilon")}
"""Settings that an optimizer has no use for."""


class OptimizationConfig(Schema):
    """How long, in what steps and how carefully a model is trained: the same for every kind of job."""

    epochs: int | None = Field(default=None, ge=1, description="passes over all samples; or give max_steps")
    max_steps: int | None = Field(default=None, ge=1, description="optimizer steps; or give epochs")
    global_batch: int = Field(
        default=8, ge=1, description="samples an optimizer step, over all ranks and micro-batches"
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="samples a forward pass on one rank; default: the rank's whole share"
    )
    optimizer: Literal["adamw", "adafactor", "sgd", "muon"] = Field(
        default="adamw",
        description="optimizer, as torch.optim has it; sgd takes beta1 as its momentum; muon is for the matrices of a "
        "model's blocks, and adamw for the rest",
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
        description="none: every rank holds the model; fsdp: weights, gradients and optimizer are divided among the "
        "ranks",
    )
    cpu_offload: bool = Field(
        default=False,
        description="sharding fsdp: weights and optimizer lie in the host's memory, and are updated there",
    )
    sum_each_micro_batch: bool = Field(
        default=False,
        description="sharding fsdp: sum gradients over the ranks after each micro-batch, not after the last: slower, "
        "and without memory for the gradients of the whole model",
    )
    deterministic: bool = Field(
        default=False, description="the same bits every time on a GPU too; an operation that cannot is an error"
    )
    device: Device = "auto"
    processes: int | None = Field(
        default=None,
        ge=1,
        description="ranks the pipeline starts, on this machine or the engine's; default: one a GPU, or one",
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="decides initial weights, data order and dropout")
    log_every: int = Field(default=10, ge=1, description="steps between metric records")
    evaluate_every: int | None = Field(
        default=None, ge=1, description="steps between evaluations, besides each epoch's end"
    )
    save_every: int | None = Field(
        default=None, ge=1, description="steps between checkpoints, besides each epoch's end"
    )
    keep_last: int = Field(default=2, ge=1, description="newest checkpoints kept, besides the best and the epochs'")
    keep_epochs: int | None = Field(
        default=None,
        ge=0,
        description="newest epochs' checkpoints kept, each of the end of an epoch; default: all of them",
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
        if self.warmup_steps and self.schedule == "constant":
            raise ValueError(
                f"schedule constant begins at its full rate, so warmup_steps {self.warmup_steps} would do nothing; set "
                "schedule: constant_with_warmup, or leave warmup_steps out"
            )
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
        for name in WITHOUT.get(self.optimizer, ()):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} goes with optimizer adamw or muon: {self.optimizer} has none; leave it out")
        return self


def masks_documents(packing: str | None, document_mask: bool | None) -> bool:
    """Whether attention stays within a document, by these settings of a training."""
    return packing == "best_fit" if document_mask is None else document_mask


class TrainingConfig(OptimizationConfig):
    """Pretraining: windows of text, drawn from several corpora."""

    context: int = Field(default=256, ge=2, description="window length in tokens")
    stride: int | None = Field(default=None, ge=1, description="tokens between window starts; default: context")
    locality: int | None = Field(
        default=None,
        ge=1,
        description="shards of a corpus whose windows are mixed with each other before the next ones are read; "
        "default: all",
    )
    alpha: float = Field(default=0.7, ge=0.0, le=1.0, description="corpora are mixed with p ~ tokens ** alpha")
    objective: Literal["causal", "masked"] = Field(
        default="causal",
        description="what is predicted: causal: each next token; masked: tokens that are hidden, by a model that reads "
        "in both directions, such as bert",
    )
    masking: MaskingConfig | None = Field(
        default=None, description="objective masked: which tokens are hidden, and how"
    )
    packing: Literal["stream", "best_fit"] = Field(
        default="stream",
        description="stream: windows are cut from documents that follow each other; best_fit: whole documents are "
        "packed into windows, and only those are cut that are longer than one",
    )
    document_mask: bool | None = Field(
        default=None,
        description="attention stays within a document: positions begin anew with each, and its first token is not "
        "predicted; default: yes with packing best_fit, else no",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.masking is not None and self.objective != "masked":
            raise ValueError(f"masking goes with objective: masked, not {self.objective!r}")
        if self.objective == "masked" and self.sharding == "fsdp":
            raise ValueError("objective: masked goes with sharding: none: masked models are not divided yet")
        if self.objective == "masked" and self.packing == "best_fit":
            raise ValueError("packing: best_fit goes with objective: causal, not 'masked'")
        if self.objective == "masked" and self.document_mask:
            raise ValueError("document_mask goes with objective: causal, not 'masked'")
        if self.packing == "best_fit" and self.stride is not None:
            raise ValueError("stride goes with packing: stream: packed windows are cut from no stream")
        if self.stride is not None and self.stride > self.context:
            raise ValueError(
                f"stride {self.stride} is beyond context {self.context}: tokens between windows would be lost"
            )
        return self

    @property
    def masks(self) -> MaskingConfig | None:
        """How tokens are hidden; None if each next token is predicted."""
        return (self.masking or MaskingConfig()) if self.objective == "masked" else None

    @property
    def masks_documents(self) -> bool:
        """Whether attention stays within a document."""
        return masks_documents(self.packing, self.document_mask)


Tracker = Literal["trackio", "wandb", "mlflow"]


def _each_once(names: list[Tracker]) -> list[Tracker]:
    if len(set(names)) < len(names):
        raise ValueError(f"it names one twice: {', '.join(names)}")
    return names


Tracking = Annotated[
    list[Tracker],
    AfterValidator(_each_once),
    Field(
        exclude_if=lambda value: not value,
        description="trackers that are shown the figures of training as well: trackio, wandb, mlflow; each keeps them "
        "on this machine unless its own environment variables say otherwise",
    ),
]

"""Schemas of training: length, batches, optimizers, windows, masking and trackers."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trainer.config.schema import Device, Precision, Schema


class MaskingConfig(Schema):
    """Tokens to predict (Devlin et al. 2018): most become the mask token, some a random one, some are kept."""

    fraction: float = Field(default=0.15, gt=0, lt=1, description="share of a window's tokens that are predicted")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these that are replaced by the mask token")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="share of these that are replaced by a random token; the rest are kept"
    )
    whole_words: bool = Field(default=False, description="choose whole words, and predict all their tokens")
    mask_token: str | None = Field(
        default=None, description="the tokenizer's mask token; default: [MASK] or <mask>, whichever the tokenizer has"
    )

    @model_validator(mode="after")
    def _shares_of_one(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"mask_share {self.mask_share} plus random_share {self.random_share} is more than 1")
        return self


class MuonConfig(Schema):
    """Muon, for the weight matrices of a model's blocks; AdamW updates embeddings, head, norms and biases."""

    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="peak learning rate of the matrices, with the same schedule; default: training.learning_rate",
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="decay of the mean of the gradients")
    nesterov: bool = Field(default=True, description="use Nesterov momentum")
    ns_steps: int = Field(default=5, ge=1, lt=100, description="Newton-Schulz iterations that orthogonalise an update")
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description="scaling of the learning rate with a matrix's shape: match_rms_adamw: updates as large as "
        "AdamW's, so that AdamW's learning rate and weight decay fit both (Liu et al. 2025); original: the scaling "
        "of Jordan et al., with learning rates of about 0.02",
    )


Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "warmup_stable_decay",
]  # fmt: skip

WHOLE_MATRICES = {"adafactor": "adafactor's factors are of", "muon": "muon orthogonalises"}
"""Optimizers that cannot step on some rows of a matrix, and why."""

WITHOUT = {"adafactor": ("beta1", "beta2", "epsilon"), "sgd": ("beta2", "epsilon")}
"""Settings that an optimizer does not use."""


class OptimizationConfig(Schema):
    """Length, batches and optimizer of a training; shared by all kinds of job."""

    epochs: int | None = Field(default=None, ge=1, description="passes over all samples; alternative to max_steps")
    max_steps: int | None = Field(default=None, ge=1, description="optimizer steps; alternative to epochs")
    global_batch: int = Field(
        default=8, ge=1, description="samples per optimizer step, over all ranks and micro-batches"
    )
    micro_batch: int | None = Field(
        default=None,
        ge=1,
        description="samples per forward pass on one rank; default: the rank's whole share of global_batch",
    )
    optimizer: Literal["adamw", "adafactor", "sgd", "muon"] = Field(
        default="adamw",
        description="optimizer of torch.optim; sgd uses beta1 as momentum; muon updates the matrices of the model's "
        "blocks, and adamw the rest",
    )
    muon: MuonConfig | None = Field(default=None, description="settings of optimizer muon")
    learning_rate: float = Field(default=5e-4, gt=0, description="peak learning rate")
    weight_decay: float = Field(
        default=0.1, ge=0, description="decay of weight matrices; not applied to biases and norms"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean of the gradients")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the mean of the squared gradients")
    epsilon: float = Field(default=1e-8, gt=0, description="AdamW's epsilon")
    schedule: Schedule = Field(
        default="cosine", description="learning-rate schedule, a name of transformers.get_scheduler"
    )
    schedule_options: dict[str, float | int | str] = Field(
        default={}, description="settings of the schedule, such as num_cycles, min_lr_rate or num_decay_steps"
    )
    warmup_steps: int = Field(default=0, ge=0, description="optimizer steps of linear warm-up")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip the gradient's norm; null: no clipping")
    precision: Precision = "fp32"
    gradient_checkpointing: bool = Field(default=False, description="recompute activations to save memory")
    compile: bool = Field(default=False, description="torch.compile the model together with its loss")
    sharding: Literal["none", "fsdp"] = Field(
        default="none",
        description="none: every rank holds the whole model; fsdp: weights, gradients and optimizer state are "
        "sharded across ranks",
    )
    cpu_offload: bool = Field(
        default=False,
        description="sharding fsdp: keep and update weights and optimizer state in host memory",
    )
    sum_each_micro_batch: bool = Field(
        default=False,
        description="sharding fsdp: sum gradients over the ranks after each micro-batch instead of after the last; "
        "slower, but needs no memory for the gradients of the whole model",
    )
    deterministic: bool = Field(
        default=False,
        description="bit-identical results on GPUs too; an operation without a deterministic implementation is an "
        "error",
    )
    device: Device = "auto"
    processes: int | None = Field(
        default=None,
        ge=1,
        description="ranks to start, on this machine or the engine's nodes; default: one per GPU, or one",
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="decides initial weights, data order and dropout")
    log_every: int = Field(default=10, ge=1, description="steps between metric records")
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between evaluations, in addition to those at each epoch's end, before the first step and "
        "after the last",
    )
    save_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between checkpoints, in addition to those at each epoch's end, at each best evaluation so "
        "far and after the last step",
    )
    keep_last: int = Field(
        default=2, ge=1, description="newest checkpoints kept, in addition to the best and those at epoch ends"
    )
    keep_epochs: int | None = Field(
        default=None,
        ge=0,
        description="newest epoch-end checkpoints kept; default: all",
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
                f"schedule constant has no warm-up, so warmup_steps {self.warmup_steps} would have no effect; set "
                "schedule: constant_with_warmup, or remove warmup_steps"
            )
        return self

    @model_validator(mode="after")
    def _shardable(self) -> Self:
        for name in ("cpu_offload", "sum_each_micro_batch"):
            if getattr(self, name) and self.sharding == "none":
                raise ValueError(f"{name} requires sharding: fsdp")
        if self.optimizer in WHOLE_MATRICES and self.sharding == "fsdp":
            reason = WHOLE_MATRICES[self.optimizer]
            raise ValueError(f"sharding: fsdp requires optimizer adamw or sgd: {reason} whole matrices")
        return self

    @model_validator(mode="after")
    def _settings_of_the_optimizer(self) -> Self:
        if self.muon is not None and self.optimizer != "muon":
            raise ValueError(f"muon requires optimizer: muon, not {self.optimizer!r}")
        for name in WITHOUT.get(self.optimizer, ()):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} requires optimizer adamw or muon: {self.optimizer} has none; remove it")
        return self


def masks_documents(packing: str | None, document_mask: bool | None) -> bool:
    """Whether attention is limited to a document under these training settings."""
    return packing == "best_fit" if document_mask is None else document_mask


class TrainingConfig(OptimizationConfig):
    """Pretraining on windows of text from several corpora."""

    epochs: int | None = Field(
        default=None,
        ge=1,
        description="passes over all windows, each rounded up to whole batches, with windows of the next pass; "
        "alternative to max_steps",
    )
    context: int = Field(default=256, ge=2, description="window length in tokens")
    stride: int | None = Field(default=None, ge=1, description="tokens between window starts; default: context")
    locality: int | None = Field(
        default=None,
        ge=1,
        description="shards per corpus whose windows are shuffled together before the next shards are read; default: "
        "all",
    )
    alpha: float = Field(
        default=0.7, ge=0.0, le=1.0, description="corpora are sampled with probability proportional to tokens ** alpha"
    )
    objective: Literal["causal", "masked"] = Field(
        default="causal",
        description="causal: predict each next token; masked: predict hidden tokens with a bidirectional model, such "
        "as bert",
    )
    masking: MaskingConfig | None = Field(
        default=None, description="objective masked: choice and replacement of the predicted tokens"
    )
    packing: Literal["stream", "best_fit"] = Field(
        default="stream",
        description="stream: windows are cut from the concatenated documents; best_fit: whole documents are packed "
        "into windows, and only documents longer than a window are cut",
    )
    document_mask: bool | None = Field(
        default=None,
        description="limit attention to a document: positions restart at 0 in each, and its first token is not "
        "predicted; default: true with packing best_fit, else false",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.masking is not None and self.objective != "masked":
            raise ValueError(f"masking requires objective: masked, not {self.objective!r}")
        if self.objective == "masked" and self.sharding == "fsdp":
            raise ValueError("objective: masked requires sharding: none: sharding of masked models is not supported")
        if self.objective == "masked" and self.packing == "best_fit":
            raise ValueError("packing: best_fit requires objective: causal, not 'masked'")
        if self.objective == "masked" and self.document_mask:
            raise ValueError("document_mask requires objective: causal, not 'masked'")
        if self.packing == "best_fit" and self.stride is not None:
            raise ValueError("stride requires packing: stream: packed windows do not overlap")
        if self.stride is not None and self.stride > self.context:
            raise ValueError(
                f"stride {self.stride} is beyond context {self.context}: tokens between windows would be lost"
            )
        return self

    @property
    def masks(self) -> MaskingConfig | None:
        """Settings of masking; None for objective causal."""
        return (self.masking or MaskingConfig()) if self.objective == "masked" else None

    @property
    def masks_documents(self) -> bool:
        """Whether attention is limited to a document."""
        return masks_documents(self.packing, self.document_mask)


Tracker = Literal["trackio", "wandb", "mlflow"]


def _each_once(names: list[Tracker]) -> list[Tracker]:
    if len(set(names)) < len(names):
        raise ValueError(f"a tracker occurs twice: {', '.join(names)}")
    return names


Tracking = Annotated[
    list[Tracker],
    AfterValidator(_each_once),
    Field(
        exclude_if=lambda value: not value,
        description="trackers that also receive the metrics of training: trackio, wandb, mlflow; each stores them on "
        "this machine unless its own environment variables direct it elsewhere",
    ),
]

"""The schemas of every job: one frozen model validates the YAML file, the command line and a deployment's form."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.config.adapters import LoraConfig, check_lora
from trainer.config.corpora import DataConfig
from trainer.config.engines import Engine, LocalEngine
from trainer.config.harness import PREFIX, HarnessConfig
from trainer.config.masking import MaskingConfig
from trainer.config.optimizers import MuonConfig
from trainer.config.schema import LANGUAGE, LICENSE, SHARD_SET, Name, Schema
from trainer.config.tracking import Tracking
from trainer.store.plain_names import Key

ENGINE = "where the work runs: local, or the nodes of a Ray cluster; the results are the same"

Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "warmup_stable_decay",
]  # fmt: skip

LORA = "train a low-rank adapter beside the frozen pretrained weights; default: train all weights"

TEXT_FIGURES = ("loss", "perplexity", "bits_per_byte")
"""What a language model is measured by: the mean loss in nats a token, its exponential, and bits a byte of text."""

MASKED_FIGURES = ("loss", "perplexity", "accuracy")
"""The same of a masked one, over the tokens that are hidden: and the share of them that it tells."""

WHOLE_MATRICES = {"adafactor": "adafactor's factors are of", "muon": "muon orthogonalises"}
"""Optimizers that cannot step on some rows of a matrix, and why."""

RESUME = (
    "exact: continue the run, or refuse if its settings differ; fork: where they differ, start a new run beside it from the "
    "weights of its newest checkpoint"
)


def masks_documents(packing: str | None, document_mask: bool | None) -> bool:
    """Whether attention stays within a document, by these settings of a training."""
    return packing == "best_fit" if document_mask is None else document_mask


def check_fork(job: Any) -> Any:
    """Raise `ValueError` if a job is to fork from no named run."""
    if job.resume == "fork" and job.run is None:
        raise ValueError("resume: fork needs `run`, the name of the run to start from")
    return job


class ModelConfig(Schema):
    """A causal language model: new from a configuration, or pretrained."""

    config: dict[str, Any] | str | None = Field(
        default=None, description="a transformers model config: keys with `model_type`, or a JSON/YAML file of them"
    )
    pretrained: str | None = Field(default=None, description="or the folder or name of a pretrained model")
    pad_vocab_to: int = Field(default=64, ge=1, description="a new model's vocabulary is rounded up to a multiple of this")
    attention: Literal["sdpa", "eager"] | None = Field(
        default=None, description="attention implementation; default: the best that the architecture has"
    )
    lora: LoraConfig | None = Field(default=None, description=LORA)

    @model_validator(mode="after")
    def _new_or_pretrained(self) -> Self:
        if (self.config is None) == (self.pretrained is None):
            raise ValueError("give either config (a new model) or pretrained")
        if self.lora is not None and self.pretrained is None:
            raise ValueError("lora goes with pretrained: the weights of a new model are random, and an adapter freezes them")
        return self


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
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="arithmetic of the forward pass")
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
    device: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="auto: the GPUs if there are any")
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


class TrainingConfig(OptimizationConfig):
    """Pretraining: windows of text, drawn from several corpora."""

    context: int = Field(default=256, ge=2, description="window length in tokens")
    stride: int | None = Field(default=None, ge=1, description="tokens between window starts; default: context")
    locality: int | None = Field(
        default=None,
        ge=1,
        description="shards of a corpus whose windows are mixed with each other before the next ones are read; default: all",
    )
    alpha: float = Field(default=0.7, ge=0.0, le=1.0, description="corpora are mixed with p ~ tokens ** alpha")
    objective: Literal["causal", "masked"] = Field(
        default="causal",
        description="what is predicted: causal: each next token; masked: tokens that are hidden, by a model that reads in both "
        "directions, such as bert",
    )
    masking: MaskingConfig | None = Field(default=None, description="objective masked: which tokens are hidden, and how")
    packing: Literal["stream", "best_fit"] = Field(
        default="stream",
        description="stream: windows are cut from documents that follow each other; best_fit: whole documents are packed into "
        "windows, and only those are cut that are longer than one",
    )
    document_mask: bool | None = Field(
        default=None,
        description="attention stays within a document: positions begin anew with each, and its first token is not predicted; "
        "default: yes with packing best_fit, else no",
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
            raise ValueError(f"stride {self.stride} is beyond context {self.context}: tokens between windows would be lost")
        return self

    @property
    def masks(self) -> MaskingConfig | None:
        """How tokens are hidden; None if each next token is predicted."""
        return (self.masking or MaskingConfig()) if self.objective == "masked" else None

    @property
    def masks_documents(self) -> bool:
        """Whether attention stays within a document."""
        return masks_documents(self.packing, self.document_mask)


class EvaluationConfig(Schema):
    """How a model is measured on the held-out documents."""

    batch: int = Field(default=16, ge=1, description="windows a forward pass")
    max_windows: int | None = Field(
        default=None, ge=1, description="windows a corpus, evenly spaced; default: all held-out text"
    )
    during_training: int | None = Field(
        default=64, ge=1, description="windows a corpus for the evaluations during training; null: all"
    )
    prompts: list[str] = Field(default=[], description="texts that the model continues")
    new_tokens: int = Field(default=48, ge=1, description="tokens a continuation")
    temperature: float = Field(default=0.8, ge=0, description="sampling temperature; 0 takes the likeliest token")
    top_k: int = Field(default=50, ge=1, description="sample from this many likeliest tokens")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the continuations")
    harness: HarnessConfig | None = Field(
        default=None, exclude_if=lambda value: value is None, description="what lm-eval measures besides; default: nothing"
    )

    def without_harness(self) -> dict[str, Any]:
        """All settings but those of lm-eval, which measures in a stage of its own."""
        return self.model_dump(mode="json", exclude={"harness"})


class CardConfig(Schema):
    """What the model card says of the model's use; what is left out is taken from the card of the pretrained model, if any."""

    license: Annotated[str, Field(pattern=LICENSE)] | None = Field(
        default=None, description="the license, by its identifier on the Hugging Face hub, such as apache-2.0"
    )
    language: list[Annotated[str, Field(pattern=LANGUAGE)]] = Field(
        default=[], description="the languages of the text, by their ISO 639 codes, such as en; or code, multilingual"
    )


class PromotionConfig(Schema):
    """The gate that decides whether a trained model becomes the champion under a name."""

    name: Name = Field(description="the name under which models are used: its champion is models/NAME/champion")
    metric: str = Field(default="loss", description="what decides: a figure of the held-out text, or of the validation split")
    greater_is_better: bool | None = Field(
        default=None, description="whether a greater `metric` is better; default: not for a loss or an error, else yes"
    )
    threshold: float | None = Field(default=None, description="the least that passes, or the most if smaller is better")
    better_by: float | None = Field(
        default=None, ge=0, description="how much better than the champion it must be, measured on the same data"
    )
    approval: bool = Field(default=False, description="wait for a person to resume the run in Prefect's UI")

    @model_validator(mode="after")
    def _has_a_gate(self) -> Self:
        if self.threshold is None and self.better_by is None:
            raise ValueError("give a threshold, or better_by: how much better than the champion")
        return self


class PrepareJob(Schema):
    """Raw corpora to verified token shards."""

    store: str = Field(description="where artifacts live: a folder or any fsspec URL")
    name: Name = Field(default="headrace", description="name of the job")
    data: DataConfig = Field(description="corpora, tokenizer and shards")
    verify: bool = Field(
        default=False,
        description="whether all shards that are published already are read and compared with their checksums, before anything "
        "else is done; else each block is compared when it is first trained or measured on",
    )
    engine: Engine = Field(default=LocalEngine(), description=ENGINE)

    @property
    def corpora(self) -> list[str]:
        """The names of the corpora that it makes shards of."""
        return [corpus.name for corpus in self.data.corpora]

    @property
    def runs_begin_with(self) -> str | None:
        """How the names of its runs begin; None if it makes none."""
        return None


class PipelineJob(PrepareJob):
    """Raw corpora to an evaluated model."""

    run: Name | None = Field(
        default=None, description="the run's folder name; default: the job's name and a digest of everything it depends on"
    )
    resume: Literal["exact", "fork"] = Field(default="exact", description=RESUME)
    model: ModelConfig = Field(description="the model to train")
    training: TrainingConfig = Field(description="optimisation")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="measurement")
    card: CardConfig = Field(default=CardConfig(), description="the model card")
    promotion: PromotionConfig | None = Field(default=None, description="the gate to becoming champion; default: none")
    tracking: Tracking = Field(default=[])

    @property
    def best_by(self) -> str:
        """The figure that says which checkpoint is best."""
        return "loss"

    @property
    def holds_out(self) -> bool:
        """Whether something may be held out to be measured on."""
        return self.data.validation_fraction > 0

    @property
    def runs_begin_with(self) -> str:
        """How the names of its runs begin."""
        return self.run or self.name

    def preparation(self) -> PrepareJob:
        """The part of the job that makes the shards."""
        return PrepareJob(store=self.store, name=self.name, data=self.data, verify=self.verify, engine=self.engine)

    @model_validator(mode="after")
    def _fork_has_a_name(self) -> Self:
        checked: Self = check_fork(self)
        return checked

    @model_validator(mode="after")
    def _masked_models_tell_tokens(self) -> Self:
        if self.training.objective == "masked" and self.evaluation.prompts:
            raise ValueError("evaluation.prompts goes with training.objective: causal: a masked model continues no text")
        if self.training.objective == "masked" and self.evaluation.harness is not None:
            raise ValueError("evaluation.harness goes with training.objective: causal: its tasks ask for continuations")
        if self.training.objective == "masked" and self.model.lora is not None:
            raise ValueError("model.lora goes with training.objective: causal, and with classifiers")
        return self

    @model_validator(mode="after")
    def _lora_goes_with_the_rest(self) -> Self:
        checked: Self = check_lora(self)
        return checked

    @model_validator(mode="after")
    def _held_out_text(self) -> Self:
        if self.promotion is not None and self.data.validation_fraction == 0:
            raise ValueError("promotion needs data.validation_fraction above 0: nothing is held out")
        if self.promotion is not None:
            self._check_metric(self.promotion.metric)
        if self.data.validation_fraction == 0:
            if self.evaluation.harness is not None:
                raise ValueError("evaluation.harness needs data.validation_fraction above 0: without, no model is evaluated")
            for name in ("evaluate_every", "early_stopping"):
                if getattr(self.training, name) is not None:
                    raise ValueError(f"training.{name} needs data.validation_fraction above 0: nothing is held out")
            if self.training.final == "best":
                raise ValueError("training.final: best needs data.validation_fraction above 0: nothing is held out")
        return self

    def _check_metric(self, metric: str) -> None:
        """Raise `ValueError` for a gate on what is not measured; which figures a task of lm-eval has, the task says."""
        harness = self.evaluation.harness
        tasks = [f"{PREFIX}{name}/" for name in harness.tasks] if harness else []
        figures = TEXT_FIGURES if self.training.objective == "causal" else MASKED_FIGURES
        if metric in figures or metric.startswith(tuple(tasks)):
            return
        named = [*figures, *(f"{begin}FIGURE" for begin in tasks)]
        hint = "; tasks of lm-eval are named in evaluation.harness" if metric.startswith(PREFIX) and not tasks else ""
        raise ValueError(f"promotion.metric is {metric!r}; what is measured are {', '.join(named)}{hint}")


class EvaluateJob(Schema):
    """A checkpoint, measured on held-out text; one of a fine-tuned run, on the labelled splits of that run."""

    store: str = Field(description="where artifacts live: a folder or any fsspec URL")
    checkpoint: str = Field(
        description="what to evaluate: a run's name (its final model), a folder in the store such as "
        "runs/NAME/checkpoints/step-00000100, or any pretrained folder"
    )
    shards: list[Annotated[Key, Field(pattern=SHARD_SET)]] | None = Field(
        default=None,
        description="shard sets in the store, such as shards/code-0123456789abcdef; default: its training's; not for a "
        "classifier",
    )
    context: int | None = Field(
        default=None, ge=2, description="window length in tokens; default: that of its training; not for a classifier"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="arithmetic of the forward pass")
    device: Literal["auto", "cpu", "gpu"] = Field(default="auto", description="auto: the GPUs if there are any")
    sharding: Literal["none", "fsdp"] = Field(
        default="none",
        description="none: every rank holds the model; fsdp: it is divided among the ranks, with the same figures",
    )
    cpu_offload: bool = Field(default=False, description="sharding fsdp: weights lie in the host's memory")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="measurement")
    engine: Engine = Field(default=LocalEngine(), description=ENGINE)

    @model_validator(mode="after")
    def _shardable(self) -> Self:
        if self.cpu_offload and self.sharding == "none":
            raise ValueError("cpu_offload goes with sharding: fsdp")
        return self


class PromoteJob(Schema):
    """A run's model to become the champion under a name."""

    store: str = Field(description="where artifacts live: a folder or any fsspec URL")
    name: Name = Field(description="the name under which models are used")
    run: Name = Field(description="the run whose final model it is to be")
    reason: str = Field(default="by hand", description="why, for the history")


class RollbackJob(Schema):
    """The champion before the present one to be champion again."""

    store: str = Field(description="where artifacts live: a folder or any fsspec URL")
    name: Name = Field(description="the name under which models are used")
    reason: str = Field(default="by hand", description="why, for the history")


class GarbageJob(Schema):
    """What no run, champion or pin reaches, to be found and removed."""

    store: str = Field(description="where artifacts live: a folder or any fsspec URL")
    older_than_days: float = Field(default=7.0, ge=0, le=36500, description="what was written to since then stays: days")
    runs_older_than_days: float | None = Field(
        default=None,
        ge=0,
        le=36500,
        description="runs that were not written to for so many days go too, but for champions, pins and what others were made "
        "from; default: no run goes",
    )
    remove: bool = Field(default=False, description="remove what is found; else it is only shown")

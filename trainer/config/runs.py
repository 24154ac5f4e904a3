"""Base schema of all jobs that train: run folder, model card, promotion and engine."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainer.config.engines import Engine, LocalEngine
from trainer.config.evaluation import PREFIX, SelectionConfig, TrainedHarnessConfig
from trainer.config.models import ModelConfig, TunedModelConfig
from trainer.config.schema import LANGUAGE, LICENSE, JobName, Name, Place, Schema
from trainer.config.training import OptimizationConfig, Tracking


class CardConfig(Schema):
    """Metadata of the model card; a field that is not set is copied from the pretrained model's card, if any."""

    license: Annotated[str, Field(pattern=LICENSE)] | None = Field(
        default=None, description="the license's identifier on the Hugging Face hub, such as apache-2.0"
    )
    language: list[Annotated[str, Field(pattern=LANGUAGE)]] = Field(
        default=[], description="languages of the text: ISO 639 codes, such as en; or code, multilingual"
    )


class PromotionConfig(Schema):
    """The gate that decides whether a trained model becomes the champion under a name."""

    name: Name = Field(description="name of the champion, which is stored in models/NAME/champion")
    metric: str = Field(default="loss", description="the deciding metric, of held-out text or of the validation split")
    greater_is_better: bool | None = Field(
        default=None,
        description="whether a greater `metric` is better; default: false for a loss or an error, else true",
    )
    threshold: float | None = Field(
        default=None, description="the smallest value that passes, or the largest if smaller is better"
    )
    better_by: float | None = Field(
        default=None,
        ge=0,
        description="required improvement over the champion, both evaluated on the same data; if there is no champion "
        "yet, every model has it",
    )
    approval: bool = Field(default=False, description="wait for a person to resume the run in Prefect's UI")

    @model_validator(mode="after")
    def _has_a_gate(self) -> Self:
        if self.threshold is None and self.better_by is None:
            raise ValueError("set threshold, or better_by (the required improvement over the champion)")
        return self


class RunJob(Schema):
    """Training of a model; each kind of job defines its data, model and evaluation."""

    store: Place
    name: JobName
    run: Name | None = Field(
        default=None,
        description="the run's folder name; default: the job's name and a digest of everything it depends on",
    )
    resume: Literal["exact", "fork"] = Field(
        default="exact",
        description="exact: continue the run; different settings are an error; fork: if settings differ, start a new "
        "run from the weights of its newest checkpoint",
    )
    data: Schema = Field(description="training data")
    model: ModelConfig | TunedModelConfig = Field(description="the model to train")
    training: OptimizationConfig = Field(description="optimisation")
    evaluation: Schema = Field(description="measurement")
    card: CardConfig = Field(default=CardConfig(), description="the model card")
    promotion: PromotionConfig | None = Field(
        default=None, description="when the model becomes the champion; default: never"
    )
    tracking: Tracking = Field(default=[])
    engine: Engine = LocalEngine()

    @property
    def best_by(self) -> str:
        """The metric that decides which checkpoint is best."""
        return self.evaluation.best_by if isinstance(self.evaluation, SelectionConfig) else "loss"

    @property
    def harness(self) -> TrainedHarnessConfig | None:
        """The tasks of lm-eval that measure the model, if any; a classifier has none."""
        tasks: TrainedHarnessConfig | None = getattr(self.evaluation, "harness", None)
        return tasks

    @property
    def judged_every(self) -> list[int]:
        """Intervals, in steps, of evaluations that can change the best checkpoint, in addition to each epoch's end.

        If a metric of an lm-eval task decides, each run of the task is such an evaluation too.
        """
        asks = self.harness.every if self.harness is not None and self.best_by.startswith(PREFIX) else None
        return [every for every in (self.training.evaluate_every, asks) if every is not None]

    @property
    def runs_begin_with(self) -> str:
        """Prefix of the names of its runs."""
        return self.run or self.name

    @model_validator(mode="after")
    def _fork_has_a_name(self) -> Self:
        if self.resume == "fork" and self.run is None:
            raise ValueError("resume: fork needs `run`, the name of the run to start from")
        return self

    @model_validator(mode="after")
    def _lora_goes_with_the_rest(self) -> Self:
        if self.model.lora is not None and self.training.sharding == "fsdp":
            raise ValueError(
                "model.lora requires training.sharding: none: sharded checkpoints of adapters are not supported"
            )
        return self

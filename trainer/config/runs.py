"""What every job says that makes a run: of its folder, its model card, the gate behind it, and where the work is
done.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainer.config.engines import Engine, LocalEngine
from trainer.config.evaluation import PREFIX, SelectionConfig, TrainedHarnessConfig
from trainer.config.models import ModelConfig, TunedModelConfig
from trainer.config.schema import LANGUAGE, LICENSE, JobName, Name, Place, Schema
from trainer.config.training import OptimizationConfig, Tracking


class CardConfig(Schema):
    """What the model card says of the model's use; what is left out is taken from the card of the pretrained model, if
    any.
    """

    license: Annotated[str, Field(pattern=LICENSE)] | None = Field(
        default=None, description="the license, by its identifier on the Hugging Face hub, such as apache-2.0"
    )
    language: list[Annotated[str, Field(pattern=LANGUAGE)]] = Field(
        default=[], description="the languages of the text, by their ISO 639 codes, such as en; or code, multilingual"
    )


class PromotionConfig(Schema):
    """The gate that decides whether a trained model becomes the champion under a name."""

    name: Name = Field(description="the name under which models are used: its champion is models/NAME/champion")
    metric: str = Field(
        default="loss", description="what decides: a figure of the held-out text, or of the validation split"
    )
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


class RunJob(Schema):
    """Data and a model to a trained, evaluated model. Each kind of job says which data, which model, and how it is
    measured.
    """

    store: Place
    name: JobName
    run: Name | None = Field(
        default=None,
        description="the run's folder name; default: the job's name and a digest of everything it depends on",
    )
    resume: Literal["exact", "fork"] = Field(
        default="exact",
        description="exact: continue the run, or refuse if its settings differ; fork: where they differ, start a new "
        "run beside it from the weights of its newest checkpoint",
    )
    data: Schema = Field(description="what it is trained on")
    model: ModelConfig | TunedModelConfig = Field(description="the model to train")
    training: OptimizationConfig = Field(description="optimisation")
    evaluation: Schema = Field(description="measurement")
    card: CardConfig = Field(default=CardConfig(), description="the model card")
    promotion: PromotionConfig | None = Field(default=None, description="the gate to becoming champion; default: none")
    tracking: Tracking = Field(default=[])
    engine: Engine = LocalEngine()

    @property
    def best_by(self) -> str:
        """The figure that says which checkpoint is best."""
        return self.evaluation.best_by if isinstance(self.evaluation, SelectionConfig) else "loss"

    @property
    def judged_every(self) -> list[int]:
        """Steps between evaluations that say which checkpoint is best, besides each epoch's end: where a task of
        lm-eval says it, the model is also evaluated whenever that is asked.
        """
        harness: TrainedHarnessConfig | None = getattr(self.evaluation, "harness", None)
        asks = harness.every if harness is not None and self.best_by.startswith(PREFIX) else None
        return [every for every in (self.training.evaluate_every, asks) if every is not None]

    @property
    def runs_begin_with(self) -> str:
        """How the names of its runs begin."""
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
                "model.lora goes with training.sharding: none: an adapter is small, and its checkpoints are not "
                "written in parts"
            )
        return self

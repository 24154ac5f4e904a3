"""The schema of fine-tuning: a labelled data set and a model that classifies, or predicts a number."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from trainer.config.labelled import LabelledDataConfig
from trainer.config.models import TunedModelConfig
from trainer.config.schema import JobName, Schema
from trainer.config.tuning import FinetuneTrainingConfig, TuningJob

BALANCED: Literal["balanced"] = "balanced"


def _names_of_classes(weights: Any) -> Any:
    """Weights by the names of classes, of which YAML reads some as whole numbers."""
    if not isinstance(weights, dict):
        return weights
    return {str(name) if type(name) is int else name: weight for name, weight in weights.items()}


ClassWeights = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""What each class counts in the loss: by its name, or so that all classes count alike."""


class ClassifierConfig(TunedModelConfig):
    """The model that is fine-tuned."""


class ClassifierTrainingConfig(FinetuneTrainingConfig):
    """The same with what is said of the classes of labelled data."""

    class_weights: Annotated[ClassWeights | None, BeforeValidator(_names_of_classes)] = Field(
        default=None,
        description="what an example, or a word, of each class counts in the loss: a weight by the class's name, 1 if not "
        "named; balanced: examples / (classes * examples of the class), or words; default: all count alike",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the target that is spread evenly over all classes"
    )


class MeasurementConfig(Schema):
    """What a fine-tuned model is measured by."""

    batch: int = Field(default=32, ge=1, description="examples a forward pass")
    metrics: list[str] | None = Field(
        default=None,
        description="metrics by name (accuracy, f1, glue/mrpc, …), by path of an `evaluate` module, or hub:NAME for the "
        "hub's; default: those of the GLUE task where the data set is one, else accuracy and f1; subset_accuracy, f1_micro and "
        "f1_macro where several labels may apply; pearsonr and spearmanr of numbers; seqeval of labels of words that mark "
        "entities, word_accuracy of others",
    )
    positive_class: Annotated[str, Strict()] | Annotated[int, Strict()] | None = Field(
        default=None, description="of two classes the one that precision, recall and F1 are of, by name or id; default: 1"
    )
    best_by: str = Field(default="loss", description="the validation figure that decides which checkpoint is best")
    greater_is_better: bool | None = Field(
        default=None, description="whether a greater `best_by` is better; default: not for a loss or an error, else yes"
    )


class FinetuneJob(TuningJob):
    """A labelled data set and a model to a fine-tuned, evaluated model."""

    name: JobName = "finetune"
    data: LabelledDataConfig = Field(description="the labelled data set")
    model: ClassifierConfig = Field(description="the model to fine-tune")
    training: ClassifierTrainingConfig = Field(description="optimisation")
    evaluation: MeasurementConfig = Field(default=MeasurementConfig(), description="measurement")

    @property
    def best_by(self) -> str:
        return self.evaluation.best_by

    @model_validator(mode="after")
    def _classes_to_weigh(self) -> Self:
        if self.data.task not in ("classification", "tokens"):
            for name in ("class_weights", "label_smoothing"):
                if getattr(self.training, name):
                    raise ValueError(f"training.{name} goes with data.task classification or tokens, not {self.data.task}")
        return self

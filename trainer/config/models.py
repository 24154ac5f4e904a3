"""The schemas of the models that jobs start from."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.config.adapters import LoraConfig
from trainer.config.schema import Schema

Attention = Annotated[
    Literal["sdpa", "eager"] | None,
    Field(description="attention implementation; default: the best that the architecture has"),
]
Lora = Annotated[
    LoraConfig | None,
    Field(description="train a low-rank adapter beside the frozen pretrained weights; default: train all weights"),
]


class ModelConfig(Schema):
    """A causal language model: new from a configuration, or pretrained."""

    config: dict[str, Any] | str | None = Field(
        default=None, description="a transformers model config: keys with `model_type`, or a JSON/YAML file of them"
    )
    pretrained: str | None = Field(default=None, description="or the folder or name of a pretrained model")
    pad_vocab_to: int = Field(default=64, ge=1, description="a new model's vocabulary is rounded up to a multiple of this")
    attention: Attention = None
    lora: Lora = None

    @model_validator(mode="after")
    def _new_or_pretrained(self) -> Self:
        if (self.config is None) == (self.pretrained is None):
            raise ValueError("give either config (a new model) or pretrained")
        if self.lora is not None and self.pretrained is None:
            raise ValueError("lora goes with pretrained: the weights of a new model are random, and an adapter freezes them")
        return self


class TunedModelConfig(Schema):
    """A pretrained model that is trained on."""

    pretrained: str = Field(
        description="a pretrained model's name or folder, or a model of this store: a run's name, or a folder such as "
        "runs/NAME/checkpoints/step-00000100"
    )
    attention: Attention = None
    lora: Lora = None

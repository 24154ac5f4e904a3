"""Schemas of the models that jobs start from, and of adapters."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema

PRETRAINED = (
    "a pretrained model: runs/NAME (a run of this store), models/NAME (a champion), a checkpoint such as "
    "runs/NAME/checkpoints/step-00000100, a local folder, or a name of the Hugging Face hub"
)


class LoraConfig(Schema):
    """Low-rank adaptation (Hu et al. 2021): W x becomes W x + alpha / rank * B A dropout(x); A and B are trained."""

    rank: int = Field(default=8, ge=1, description="rows of A and columns of B")
    alpha: float = Field(default=16.0, gt=0, description="the added term is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of A's inputs that are dropped in training")
    targets: list[str] | None = Field(
        default=None,
        min_length=1,
        description="layers to adapt, by the last part of their module names, such as q_proj; default: every linear "
        "layer except the head and layers whose adapter could not be merged or would not be used",
    )
    publish: Literal["merged", "adapter"] = Field(
        default="merged",
        description="contents of the final model: merged: the full weights, with the adapter merged into them; "
        "adapter: only the adapter, in peft's format",
    )


Attention = Annotated[
    Literal["sdpa", "eager"] | None,
    Field(description="attention implementation; default: chosen by transformers"),
]
Lora = Annotated[
    LoraConfig | None,
    Field(description="freeze the pretrained weights and train a low-rank adapter; default: train all weights"),
]


Quantize = Annotated[
    Literal["nf4", "int8"] | None,
    Field(
        exclude_if=lambda value: value is None,
        description="with model.lora: quantize the frozen linear layers to 4 or 8 bits with bitsandbytes; default: "
        "not quantized",
    ),
]


def check_quantize(form: str | None, lora: LoraConfig | None) -> None:
    """Raise `ValueError` if the model is quantised but no adapter is trained."""
    if form is not None and lora is None:
        raise ValueError("quantize requires lora: quantised weights cannot be trained, only an adapter can")


class ModelConfig(Schema):
    """A language model: new from a configuration, or pretrained."""

    config: dict[str, Any] | str | None = Field(
        default=None,
        description="a new model: its transformers config as keys with `model_type`, or as a JSON or YAML file of them",
    )
    pretrained: str | None = Field(default=None, description=PRETRAINED)
    pad_vocab_to: int = Field(
        default=64, ge=1, description="a new model's vocabulary is rounded up to a multiple of this"
    )
    attention: Attention = None
    lora: Lora = None
    quantize: Quantize = None

    @model_validator(mode="after")
    def _new_or_pretrained(self) -> Self:
        if (self.config is None) == (self.pretrained is None):
            raise ValueError("give either config (a new model) or pretrained")
        if self.lora is not None and self.pretrained is None:
            raise ValueError(
                "lora requires pretrained: with lora the model's weights are frozen, and those of a new model are "
                "random"
            )
        check_quantize(self.quantize, self.lora)
        return self


class TunedModelConfig(Schema):
    """A pretrained model to train further."""

    pretrained: str = Field(description=PRETRAINED)
    attention: Attention = None
    lora: Lora = None

"""The schemas of the models that jobs start from, and of adapters beside them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema


class LoraConfig(Schema):
    """Low-rank adaptation (Hu et al. 2021): W x becomes W x + alpha / rank * B A dropout(x), of which A and B are
    trained.
    """

    rank: int = Field(default=8, ge=1, description="rows of A and columns of B")
    alpha: float = Field(default=16.0, gt=0, description="what is added is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of A's inputs that are dropped in training")
    targets: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the layers that are adapted, by the ends of their modules' names, such as q_proj; default: every "
        "linear layer but the head",
    )
    publish: Literal["merged", "adapter"] = Field(
        default="merged",
        description="the final model: merged: weights as of any model; adapter: the adapter alone, as peft loads it "
        "beside the pretrained model",
    )


Attention = Annotated[
    Literal["sdpa", "eager"] | None,
    Field(description="attention implementation; default: the best that the architecture has"),
]
Lora = Annotated[
    LoraConfig | None,
    Field(description="train a low-rank adapter beside the frozen pretrained weights; default: train all weights"),
]


Quantize = Annotated[
    Literal["nf4", "int8"] | None,
    Field(
        exclude_if=lambda value: value is None,
        description="hold the frozen linear layers beside model.lora in 4 or 8 bits, by bitsandbytes; default: as they "
        "are",
    ),
]


def check_quantize(form: str | None, lora: LoraConfig | None) -> None:
    """Raise `ValueError` if a base is to be quantised that no adapter is trained beside."""
    if form is not None and lora is None:
        raise ValueError("quantize goes with lora: quantised weights are not trained, an adapter beside them is")


class ModelConfig(Schema):
    """A causal language model: new from a configuration, or pretrained."""

    config: dict[str, Any] | str | None = Field(
        default=None, description="a transformers model config: keys with `model_type`, or a JSON/YAML file of them"
    )
    pretrained: str | None = Field(default=None, description="or the folder or name of a pretrained model")
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
                "lora goes with pretrained: the weights of a new model are random, and an adapter freezes them"
            )
        check_quantize(self.quantize, self.lora)
        return self


class TunedModelConfig(Schema):
    """A pretrained model that is trained on."""

    pretrained: str = Field(
        description="a pretrained model's name or folder, or a model of this store: a run's name, or a folder such as "
        "runs/NAME/checkpoints/step-00000100"
    )
    attention: Attention = None
    lora: Lora = None

"""The schema of adapters: small matrices that are trained beside a pretrained model's frozen ones."""

from typing import Literal

from pydantic import Field

from trainer.config.schema import Schema


class LoraConfig(Schema):
    """Low-rank adaptation (Hu et al. 2021): W x becomes W x + alpha / rank * B A dropout(x), of which A and B are trained."""

    rank: int = Field(default=8, ge=1, description="rows of A and columns of B")
    alpha: float = Field(default=16.0, gt=0, description="what is added is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of A's inputs that are dropped in training")
    targets: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the layers that are adapted, by the ends of their modules' names, such as q_proj; default: every linear "
        "layer but the head",
    )
    publish: Literal["merged", "adapter"] = Field(
        default="merged",
        description="the final model: merged: weights as of any model; adapter: the adapter alone, as peft loads it beside the "
        "pretrained model",
    )

"""The schemas of optimizers that have settings of their own."""

from typing import Literal

from pydantic import Field

from trainer.config.schema import Schema


class MuonConfig(Schema):
    """Muon, which takes the weight matrices of a model's blocks; embeddings, head, norms and biases are AdamW's."""

    learning_rate: float | None = Field(
        default=None, gt=0, description="peak learning rate of the matrices, on the same schedule; default: that of training"
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="decay of the gradient's mean")
    nesterov: bool = Field(default=True, description="Nesterov's momentum")
    ns_steps: int = Field(default=5, ge=1, lt=100, description="iterations of Newton and Schulz that orthogonalise an update")
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        default="match_rms_adamw",
        description="how the rate follows a matrix's shape: match_rms_adamw: updates as large as AdamW's, whose rate and decay "
        "then serve for both (Liu et al. 2025); original: as Jordan et al. have it, with rates of some 0.02",
    )

"""The schema of pretraining: windows of text, and what is predicted in them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config.masking import MaskingConfig
from trainer.config.optimization import OptimizationConfig


def masks_documents(packing: str | None, document_mask: bool | None) -> bool:
    """Whether attention stays within a document, by these settings of a training."""
    return packing == "best_fit" if document_mask is None else document_mask


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

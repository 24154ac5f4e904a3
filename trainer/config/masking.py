"""The schema of masking: which tokens a masked language model is to tell, and what stands in their place."""

from typing import Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema


class MaskingConfig(Schema):
    """Tokens that are hidden and predicted (Devlin et al. 2018): most become the mask token, some another one, some stay."""

    fraction: float = Field(default=0.15, gt=0, lt=1, description="share of a window's tokens that are predicted")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="share of these that the mask token stands for")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="share of these that a random token stands for; the rest stay as they are"
    )
    whole_words: bool = Field(default=False, description="choose words, and predict all tokens of each")
    mask_token: str | None = Field(
        default=None, description="the tokenizer's mask token; default: [MASK] or <mask>, whichever it has"
    )

    @model_validator(mode="after")
    def _shares_of_one(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"mask_share {self.mask_share} and random_share {self.random_share} are more than 1 together")
        return self

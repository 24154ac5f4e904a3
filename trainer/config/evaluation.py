"""The schema of how a language model is measured."""

from pydantic import Field

from trainer.config.harness import HarnessSetting
from trainer.config.schema import Schema

TEXT_FIGURES = ("loss", "perplexity", "bits_per_byte")
"""What a language model is measured by: the mean loss in nats a token, its exponential, and bits a byte of text."""

MASKED_FIGURES = ("loss", "perplexity", "accuracy")
"""The same of a masked one, over the tokens that are hidden: and the share of them that it tells."""


class EvaluationConfig(Schema):
    """How a model is measured on the held-out documents."""

    batch: int = Field(default=16, ge=1, description="windows a forward pass")
    max_windows: int | None = Field(
        default=None, ge=1, description="windows a corpus, evenly spaced; default: all held-out text"
    )
    during_training: int | None = Field(
        default=64, ge=1, description="windows a corpus for the evaluations during training; null: all"
    )
    prompts: list[str] = Field(default=[], description="texts that the model continues")
    new_tokens: int = Field(default=48, ge=1, description="tokens a continuation")
    temperature: float = Field(default=0.8, ge=0, description="sampling temperature; 0 takes the likeliest token")
    top_k: int = Field(default=50, ge=1, description="sample from this many likeliest tokens")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the continuations")
    harness: HarnessSetting = None

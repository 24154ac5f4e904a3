"""What all schemas share: that they are frozen, what names look like, and fields that several of them have."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from trainer.common.addresses import check_address

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LICENSE = r"^[a-z0-9][a-z0-9.+-]*$"
LANGUAGE = r"^([a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual)$"
SHARD_SET = r"^shards/[^/]+$"

SPELLINGS = {
    NAME: "letters, digits and _ . - only, a letter or digit first",
    LICENSE: "a license's identifier on the Hugging Face hub, such as apache-2.0",
    LANGUAGE: "an ISO 639 code, such as en, or code, or multilingual",
    SHARD_SET: "a shard set of the store, such as shards/code-0123456789abcdef",
}
"""What is expected where a pattern says it, in words."""

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
JobName = Annotated[Name, Field(description="name of the job")]
Place = Annotated[str, Field(description="where artifacts live: a folder or any fsspec URL")]
Precision = Annotated[Literal["fp32", "bf16", "fp16"], Field(description="arithmetic of the forward pass")]
Device = Annotated[Literal["auto", "cpu", "gpu"], Field(description="auto: the GPUs if there are any")]


TEXTS = {"prompts", "reason", "pattern", "classes", "positive_class", "separator", "label_separator", "eos_token", "mask_token"}
"""Fields that hold any text, so that what looks like an address in them is none that is read."""


class Schema(BaseModel):
    """Frozen, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @field_validator("*")
    @classmethod
    def _holds_no_credentials(cls, value: Any, info: ValidationInfo) -> Any:
        for text in _texts_in(value) if info.field_name not in TEXTS else ():
            check_address(text)
        return value


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(each)

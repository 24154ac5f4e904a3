"""What every schema is made of."""

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """Frozen, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

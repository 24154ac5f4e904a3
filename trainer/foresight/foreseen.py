"""A stage as it is foreseen."""

from typing import Literal, NamedTuple

Verdict = Literal["reused", "made", "continued", "depends", "refused", "left out"]


class Foreseen(NamedTuple):
    """A stage, what becomes of it and why; `work` says how much there is to do, `created` when what is reused was made."""

    stage: str
    verdict: Verdict
    key: str | None = None
    reasons: tuple[str, ...] = ()
    work: str = ""
    created: str = ""

    @property
    def later(self) -> str:
        """Why a stage after this one cannot be told yet."""
        words = {"made": "which will be made", "continued": "which is not finished", "refused": "which is refused"}
        return f"depends on {self.stage}, {words.get(self.verdict, 'which is not there yet')}"

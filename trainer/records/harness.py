"""What lm-eval measured of a model, as the store holds it and as stages hand it on; free of heavy imports."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from trainer.config.harness import PREFIX
from trainer.store.plain_names import Count, Digest, Figure


class Record(BaseModel):
    """Frozen, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskData(Record):
    """A local file of a task's examples: those that are asked, or others, such as the solved ones before them."""

    path: str
    sha256: Digest
    asked: bool


class TaskIdentity(Record):
    """What a task asks, and how: two figures of one name can be compared if these are equal.

    `definition` is the digest of its YAML files and functions, `data` are its local files. One that comes with lm-eval has
    neither: its version tells what it is, and its data is what the hub has under the name.
    """

    definition: Digest | None = None
    data: list[TaskData] = []
    limit: Count | None = None
    few_shot: Count | None = None
    chat_template: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether questions are asked as messages, by the model's own template."""
    lm_eval: str


class HarnessFigure(Record):
    """A figure, with its standard error where lm-eval tells it, and whether a greater one is better, where that is known."""

    value: Figure
    error: Figure | None = None
    greater_is_better: bool | None = None


class HarnessScores(Record):
    """The figures of a task or a group.

    `kept_out`: whether all questions of local data were kept out of the text that the model was trained on, but for those of
    fewer than `least_words` words; None if that is not known, as of data of the hub.
    """

    figures: dict[str, HarnessFigure]
    examples: Count
    few_shot: Count
    version: str
    identity: str
    kept_out: bool | None = None
    least_words: Count | None = None

    def tell_kept_out(self) -> str:
        """Whether they were kept out, in a few words."""
        if not self.kept_out:
            return "not known" if self.kept_out is None else "no"
        return "yes" if (self.least_words or 0) <= 1 else f"yes, from {self.least_words} words on"


class HarnessResult(Record):
    """The figures of a model on tasks of lm-eval."""

    format: int
    fingerprint: str
    key: str
    checkpoint: str
    model: str | None = None
    """The key that was found under `checkpoint`; None for no model of the store."""
    lm_eval: str
    limit: Count | None = None
    tasks: dict[str, HarnessScores]
    doubts: list[str] = []
    """What is doubtful about the figures, mostly in lm-eval's words, such as questions that are longer than the model."""
    reused: bool = False

    def figures(self) -> dict[str, float]:
        """All figures, as a gate's `metric` names them."""
        return {name: figure.value for name, _, figure in self._all()}

    def identities(self) -> dict[str, str]:
        """What each task is, by its name."""
        return {name: scores.identity for name, scores in self.tasks.items()}

    def rows(self) -> list[dict[str, object]]:
        """A row for each figure."""
        return [
            {
                "figure": name,
                "value": round(figure.value, 4),
                "error": None if figure.error is None else round(figure.error, 4),
                "examples": scores.examples,
                "few shot": scores.few_shot,
                "kept out of training": scores.tell_kept_out(),
            }
            for name, scores, figure in self._all()
        ]

    def lines(self) -> list[str]:
        """The same for a terminal."""
        return [
            f"{name} {figure.value:.4f}{f' ± {figure.error:.4f}' if figure.error is not None else ''}   "
            f"{scores.examples:,} examples, kept out of training: {scores.tell_kept_out()}"
            for name, scores, figure in self._all()
        ] + [f"doubtful: {doubt}" for doubt in self.doubts]

    def describe(self) -> str:
        """The figures in one line."""
        return ", ".join(f"{name} {figure.value:.4f}" for name, _, figure in self._all())

    def _all(self) -> Iterator[tuple[str, HarnessScores, HarnessFigure]]:
        for task, scores in self.tasks.items():
            for figure, found in scores.figures.items():
                yield f"{PREFIX}{task}/{figure}", scores, found


def task_of(figure: str) -> str | None:
    """The task that a figure is of, by its name; None if it is none of lm-eval."""
    return figure.removeprefix(PREFIX).split("/")[0] if figure.startswith(PREFIX) else None

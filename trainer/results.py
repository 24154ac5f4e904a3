"""What stages find out, as they hand it on; free of heavy imports, so that the pipeline can read it."""

from pydantic import BaseModel, ConfigDict

from trainer.plan import FinetunePlan, StepPlan


class Result(BaseModel):
    """Frozen, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusPreview(Result):
    """A corpus's raw files, and its counts if it is tokenized already."""

    name: str
    files: int
    raw_bytes: int
    documents: int | None
    tokens: int | None


class Preflight(Result):
    """What a job will do. `plan` is exact, and None until the text is tokenized; `about_*` are estimates."""

    corpora: list[CorpusPreview]
    vocab_size: int
    parameters: int
    ranks: int
    plan: StepPlan | None
    about_windows: int
    about_steps: int
    about_memory_bytes: int
    about_disk_bytes: int
    free_disk_bytes: int | None


class CorpusScore(Result):
    """Mean loss in nats a token, its exponential, and how much text it was measured on."""

    loss: float
    perplexity: float
    tokens: int
    windows: int


class Scores(Result):
    """Scores by corpus, and over all their tokens."""

    corpora: dict[str, CorpusScore]
    total: CorpusScore


class Sample(Result):
    """A prompt and what the model made of it."""

    prompt: str
    continuation: str


class Evaluation(Result):
    """What was measured, on what, and the result."""

    format: int
    fingerprint: str
    key: str
    checkpoint: str
    shards: list[str]
    context: int
    scores: Scores
    samples: list[Sample]
    model: str | None = None
    """The key that was found under `checkpoint`; None for no model of the store, and in a run's own record."""
    reused: bool = False


class ClassScore(Result):
    """How well one class is told, as scikit-learn's precision_recall_fscore_support has it."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


class Classification(Result):
    """A split's confusion matrix (rows are labels, columns predictions) and the figures of each class."""

    confusion: list[list[int]]
    classes: list[ClassScore]


class FinetuneEvaluation(Result):
    """What was measured of a fine-tuned model: figures by split, and the digests of its prediction files."""

    format: int
    fingerprint: str
    key: str
    checkpoint: str
    encoded: str
    scores: dict[str, dict[str, float]]
    classification: dict[str, Classification]
    predictions: dict[str, str]
    reused: bool = False


class FinetunePreflight(Result):
    """What a fine-tuning job will do. `plan` is None until the data is encoded."""

    model: str
    parameters: int
    ranks: int
    metrics: list[str]
    splits: dict[str, int] | None
    plan: FinetunePlan | None


class Verdict(Result):
    """What a gate says of a model, in words, and whether it passes."""

    passed: bool
    reason: str


class Outcome(Result):
    """What the whole pipeline made: the run, its evaluation (None if nothing was held out), its report, the gate's verdict."""

    run: str
    evaluation: Evaluation | None
    report: str
    promotion: Verdict | None = None


class FinetuneOutcome(Result):
    """What fine-tuning made: the run, its evaluation, its report, and the gate's verdict."""

    run: str
    evaluation: FinetuneEvaluation
    report: str
    promotion: Verdict | None = None

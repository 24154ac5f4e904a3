"""The gate: whether a model's figures are good enough for it to become champion, and better than the champion's."""

import math

from trainer.common.display import decimals_apart, plain_score
from trainer.common.errors import RunError
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import PromotionConfig, RunJob
from trainer.evaluation.measurement import harness_job
from trainer.evaluation.metrics import greater_is_better
from trainer.records.basis import BITS_PER_BYTE, AnyBasis, ExamplesBasis, TextBasis, task_of, why_incomparable
from trainer.records.results import Remeasured, Verdict
from trainer.records.shapes import Move

ALREADY = "it is the champion already"

BY_HAND = "only `headrace promote` makes it champion again"

NOBODY_ASKED = "not promoted: promotion.approval requires a person's approval; use `headrace promote`"
"""For runs outside a Prefect server, where nobody could approve."""

ROUNDING = 1e-9
"""Tolerance for a score and for a difference of two: in floating point, a mean of F1 scores that is 0.92 may be
0.9199999999999999, and 0.82 - 0.81 is below 0.01.
"""


Basis = AnyBasis | None
"""The measurement basis of scores, if it is known."""


def judge(
    gate: PromotionConfig,
    run: str,
    fingerprint: str,
    scores: dict[str, float],
    before: list[Move],
    measured_on: Basis = None,
    remeasured: Remeasured | None = None,
) -> Verdict:
    """Compare the scores of a run's model with the threshold and, if there is a champion, with its scores.

    A model that was rolled back does not pass again automatically, nor does, by a threshold alone, one that another
    model replaced. `remeasured` holds the champion's scores measured now, if those of its promotion have a different
    basis. Raises `RunError` if the metric was not measured.
    """
    champions = current_champions(before)
    champion = champions[-1] if champions else None
    if champion is not None and is_of(champion, run, fingerprint):
        return Verdict(passed=True, reason=ALREADY)
    promoted = [move for move in before if move.action == "promote" and is_of(move, run, fingerprint)]
    if promoted and not any(move is promoted[-1] for move in champions):
        return Verdict(passed=False, reason=f"it was champion and was rolled back; {BY_HAND}")
    if promoted and champion is not None and gate.better_by is None:
        return Verdict(passed=False, reason=f"it was champion until {champion.run} replaced it; {BY_HAND}")
    if gate.metric not in scores:
        raise RunError(
            f"promotion.metric is {gate.metric!r}, which was not measured; measured were {', '.join(sorted(scores))}"
        )
    score, sign = scores[gate.metric], 1 if greater_is_better(gate.metric, gate.greater_is_better) else -1
    reason = f"{gate.metric} {plain_score(score, gate.threshold)}"
    if not math.isfinite(score):
        return Verdict(passed=False, reason=f"{reason} is not a finite number")
    if gate.threshold is not None:
        side = "at least" if sign > 0 else "at most"
        if not sign * (score - gate.threshold) >= -ROUNDING:
            return Verdict(passed=False, reason=f"{reason} is not {side} {gate.threshold:.9g}")
        reason += f" is {side} {gate.threshold:.9g}"
    if gate.better_by is None or champion is None:
        return Verdict(passed=True, reason=reason)
    its = comparable_scores(gate.metric, measured_on, champion, remeasured)
    if its is None:
        return Verdict(passed=False, reason=f"{reason}, but {_explain(gate.metric, measured_on, champion, remeasured)}")
    own = its.scores[gate.metric]
    if not math.isfinite(own):
        problem = f"that of the champion is {own}, with which nothing can be compared; use `headrace promote`"
        return Verdict(passed=False, reason=f"{reason}, but {problem}")
    ahead = sign * (score - own)
    difference = f"{ahead:+z.{decimals_apart(ahead, gate.better_by)}f}"
    reason += f", {difference} against the champion's {plain_score(own)}{'' if its is champion else ', measured again'}"
    passed = ahead >= gate.better_by - ROUNDING
    return Verdict(passed=passed, reason=reason if passed else f"{reason}; needed at least +{gate.better_by:g}")


def unapproved(verdict: Verdict) -> Verdict:
    """The verdict outside a Prefect server: a model that passes is not promoted, because nobody could approve it."""
    if not verdict.passed or verdict.reason == ALREADY:
        return verdict
    return Verdict(passed=False, reason=f"{verdict.reason}; {NOBODY_ASKED}")


def champion_job(job: RunJob, champion: str) -> EvaluateJob | None:
    """The job by which lm-eval measures the champion too, if the gate's metric is one of lm-eval; else None."""
    gate = job.promotion
    return None if gate is None or task_of(gate.metric) is None else harness_job(job, champion)


def current_champions(found: list[Move]) -> list[Move]:
    """The champions that rollbacks would restore, oldest first, and the present one last."""
    champions: list[Move] = []
    for move in found:
        if move.action == "promote":
            champions.append(move)
        else:
            champions.pop()
    return champions


def comparable_scores(
    metric: str, measured_on: Basis, champion: Move, remeasured: Remeasured | None
) -> Move | Remeasured | None:
    """The champion's scores with a comparable figure: those of its promotion, else those measured now, else None."""
    its = remeasured if remeasured is not None and is_of(remeasured, champion.run, champion.fingerprint) else None
    known: list[Move | Remeasured] = [champion, its] if its else [champion]
    return next((each for each in known if not _differences(metric, measured_on, each)), None)


def _explain(metric: str, measured_on: Basis, champion: Move, remeasured: Remeasured | None) -> str:
    """Why a score cannot be compared with the champion's, and what to do."""
    found = "; ".join(_differences(metric, measured_on, champion))
    why = f"it cannot be compared with the champion {champion.run} ({found})"
    if remeasured is None or not is_of(remeasured, champion.run, champion.fingerprint):
        return f"{why}; run the job again to measure the champion again"
    problem = remeasured.problem or "; ".join(_differences(metric, measured_on, remeasured))
    has_bytes = (isinstance(measured_on, TextBasis) and not measured_on.document_mask) or (
        isinstance(measured_on, ExamplesBasis) and measured_on.answers
    )
    other = has_bytes and metric != BITS_PER_BYTE and task_of(metric) is None
    advice = f"set promotion.metric: {BITS_PER_BYTE}, which can be compared across tokenizers, or " if other else ""
    return f"{why}, and the champion cannot be measured in the same way: {problem}; {advice}promote by hand"


def is_of(record: Move | Remeasured, run: str, fingerprint: str) -> bool:
    """Whether a record is about this model."""
    return (record.run, record.fingerprint) == (run, fingerprint)


def _differences(metric: str, measured_on: Basis, its: Move | Remeasured) -> list[str]:
    return why_incomparable(metric, measured_on, its.measured_on) if metric in its.scores else [f"it has no {metric!r}"]

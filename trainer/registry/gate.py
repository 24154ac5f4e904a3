"""The gate to becoming champion: whether a model's figures are good enough, and can be compared with the champion's at
all.
"""

import math
from collections.abc import Callable

from trainer.common.errors import ArtifactError, ConfigError, RunError, TokenizerError
from trainer.config.runs import PromotionConfig
from trainer.evaluation.metrics import greater_is_better
from trainer.records.basis import BITS_PER_BYTE, AnyBasis, ExamplesBasis, TextBasis, task_of, why_incomparable
from trainer.records.evaluations import Result
from trainer.records.results import Remeasured, Verdict
from trainer.records.shapes import Move

ALREADY = "it is the champion already"

BY_HAND = "only `headrace promote` makes it champion again"

ROUNDING = 1e-9
"""By which a difference of two scores may be short of what was asked for: 0.82 less 0.81 is below 0.01."""


Basis = AnyBasis | None
"""What scores were measured on, if that is known."""


def judge(
    gate: PromotionConfig,
    run: str,
    fingerprint: str,
    scores: dict[str, float],
    before: list[Move],
    measured_on: Basis = None,
    anew: Remeasured | None = None,
) -> Verdict:
    """Hold the scores of a run's model against the threshold and, if there is a champion, against its scores.

    What was rolled back does not pass again by itself, nor, by a threshold alone, what another model took the place of.
    `anew` holds the champion's scores of now, where those that it was promoted with were measured on something else.
    Raises `RunError` if the metric was not measured.
    """
    standing = standing_champions(before)
    champion = standing[-1] if standing else None
    if champion is not None and _is_of(champion, run, fingerprint):
        return Verdict(passed=True, reason=ALREADY)
    promoted = [move for move in before if move.action == "promote" and _is_of(move, run, fingerprint)]
    if promoted and not any(move is promoted[-1] for move in standing):
        return Verdict(passed=False, reason=f"it was champion and was rolled back; {BY_HAND}")
    if promoted and champion is not None and gate.better_by is None:
        return Verdict(passed=False, reason=f"it was champion until {champion.run} took its place; {BY_HAND}")
    if gate.metric not in scores:
        raise RunError(
            f"promotion.metric is {gate.metric!r}, which was not measured; there are {', '.join(sorted(scores))}"
        )
    score, sign = scores[gate.metric], _sign(gate)
    said = f"{gate.metric} {score:.4f}"
    if not math.isfinite(score):
        return Verdict(passed=False, reason=f"{said} is no number to compare")
    if gate.threshold is not None:
        side = "at least" if sign > 0 else "at most"
        if not sign * score >= sign * gate.threshold:
            return Verdict(passed=False, reason=f"{said} is not {side} {gate.threshold:g}")
        said += f" is {side} {gate.threshold:g}"
    if gate.better_by is None or champion is None:
        return Verdict(passed=True, reason=said)
    its = comparable_scores(gate.metric, measured_on, champion, anew)
    if its is None:
        return Verdict(passed=False, reason=f"{said}, but {_explain(gate.metric, measured_on, champion, anew)}")
    ahead = sign * (score - its.scores[gate.metric])
    said += (
        f", {ahead:+.4f} on the champion's {its.scores[gate.metric]:.4f}{'' if its is champion else ', measured anew'}"
    )
    passed = ahead >= gate.better_by - ROUNDING
    return Verdict(passed=passed, reason=said if passed else f"{said}: not {gate.better_by:g} better")


def remeasure(champion: Move, measure: Callable[[], Result]) -> Remeasured:
    """The champion's scores of now, or why they cannot be had: its model is gone, or does not read this data."""
    named = {"run": champion.run, "fingerprint": champion.fingerprint}
    try:
        found = measure()
    except (ArtifactError, ConfigError, TokenizerError) as error:
        return Remeasured(**named, problem=str(error))
    return Remeasured(**named, scores=found.figures(), measured_on=found.measured_on)


def gates_on_harness(gate: PromotionConfig | None) -> bool:
    """Whether a gate's figure is one of lm-eval, so that a champion must be measured by it too."""
    return gate is not None and task_of(gate.metric) is not None


def standing_champions(found: list[Move]) -> list[Move]:
    """The champions that a rollback would come to, the present one last."""
    standing: list[Move] = []
    for move in found:
        if move.action == "promote":
            standing.append(move)
        else:
            standing.pop()
    return standing


def _sign(gate: PromotionConfig) -> int:
    """1 if a greater score is better, else -1."""
    return 1 if greater_is_better(gate.metric, gate.greater_is_better) else -1


def comparable_scores(
    metric: str, measured_on: Basis, champion: Move, anew: Remeasured | None
) -> Move | Remeasured | None:
    """The champion's scores that hold a figure which was measured on the same: those of its promotion, or those of
    now.
    """
    its = anew if anew is not None and _is_of(anew, champion.run, champion.fingerprint) else None
    known: list[Move | Remeasured] = [champion, its] if its else [champion]
    return next((each for each in known if not _differences(metric, measured_on, each)), None)


def _explain(metric: str, measured_on: Basis, champion: Move, anew: Remeasured | None) -> str:
    """Why there is nothing to compare a score with, and what to do."""
    found = "; ".join(_differences(metric, measured_on, champion))
    why = f"that is not to be compared with the champion {champion.run} ({found})"
    if anew is None or not _is_of(anew, champion.run, champion.fingerprint):
        return f"{why}; run it again, which measures the champion anew"
    problem = anew.problem or "; ".join(_differences(metric, measured_on, anew))
    has_bytes = isinstance(measured_on, TextBasis) or (isinstance(measured_on, ExamplesBasis) and measured_on.answers)
    other = has_bytes and metric != BITS_PER_BYTE and task_of(metric) is None
    advice = f"take promotion.metric: {BITS_PER_BYTE}, which tokenizers have in common, or " if other else ""
    return f"{why}, nor can that model be measured on the same: {problem}; {advice}promote by hand"


def _is_of(told: Move | Remeasured, run: str, fingerprint: str) -> bool:
    """Whether something is told of this model."""
    return (told.run, told.fingerprint) == (run, fingerprint)


def _differences(metric: str, measured_on: Basis, its: Move | Remeasured) -> list[str]:
    return why_incomparable(metric, measured_on, its.measured_on) if metric in its.scores else [f"it has no {metric!r}"]

"""Champions: which run's model is the one in use under a name, decided by a gate, with its history.

Who names a champion gets the model that is it now, so that one champion takes the place of another of the same use
only.

    models/NAME/champion    the moves, oldest first: a promotion puts a run on top, a rollback takes the top one away

Everything is in one file, which is replaced only by who has read it as it is: a champion and its history never
disagree, and of two promotions at once none is lost. The gate says whether a model's figures are good enough, and can
be compared with the champion's at all.
"""

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError, ConfigError, RunError, TokenizerError
from trainer.config.kinds import kind_of_run
from trainer.config.runs import PromotionConfig
from trainer.evaluation.measurement import read_result
from trainer.evaluation.metrics import greater_is_better
from trainer.records.basis import BITS_PER_BYTE, AnyBasis, ExamplesBasis, TextBasis, task_of, why_incomparable
from trainer.records.evaluations import Result
from trainer.records.lease import holding
from trainer.records.results import Remeasured, Verdict
from trainer.records.sealed import open_sealed, read_listed, read_sealed, sealed_bytes
from trainer.records.shapes import Move
from trainer.store.names import CHAMPION, CONFIG, FINAL
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

log = logging.getLogger(__name__)


ALREADY = "it is the champion already"

BY_HAND = "only `headrace promote` makes it champion again"

NOBODY_ASKED = "not promoted: promotion.approval asks for a person; `headrace promote` promotes by hand"
"""Where there is no page on which somebody could resume a run."""

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
    score, sign = scores[gate.metric], 1 if greater_is_better(gate.metric, gate.greater_is_better) else -1
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
    has_bytes = (isinstance(measured_on, TextBasis) and not measured_on.document_mask) or (
        isinstance(measured_on, ExamplesBasis) and measured_on.answers
    )
    other = has_bytes and metric != BITS_PER_BYTE and task_of(metric) is None
    advice = f"take promotion.metric: {BITS_PER_BYTE}, which tokenizers have in common, or " if other else ""
    return f"{why}, nor can that model be measured on the same: {problem}; {advice}promote by hand"


def _is_of(told: Move | Remeasured, run: str, fingerprint: str) -> bool:
    """Whether something is told of this model."""
    return (told.run, told.fingerprint) == (run, fingerprint)


def _differences(metric: str, measured_on: Basis, its: Move | Remeasured) -> list[str]:
    return why_incomparable(metric, measured_on, its.measured_on) if metric in its.scores else [f"it has no {metric!r}"]


NAMED = 5
"""Classes that are named of those that a model has."""

CLASSIFY = ("classification", "multi-label", "tokens")


class Use(NamedTuple):
    """A model's kind with its task, in words, and its classes in their order; none where it has none."""

    kind: str
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.classes:
            return self.kind
        more = f" and {len(self.classes) - NAMED} more" if len(self.classes) > NAMED else ""
        return f"{self.kind}, with the classes {', '.join(self.classes[:NAMED])}{more}"


def other_use(store: Store, run: str, champion: str) -> str | None:
    """That a run's model is for another use than the champion's; None if it is not, or their records do not tell."""
    uses = [_read_use(store, each) for each in (run, champion)]
    if None in uses or uses[0] == uses[1]:
        return None
    return f"{run} is for another use ({uses[0]}) than the champion {champion} ({uses[1]})"


def _read_use(store: Store, run: str) -> Use | None:
    try:
        config, final = read_sealed(store, f"{run}/{CONFIG}"), final_manifest(store, run)
        if config is None or final is None:
            return None
        kind, task = kind_of_run(config), config["job"]["data"].get("task")
        objective = config["job"].get("training", {}).get("objective", "causal")
        model = read_listed(store, f"{run}/{FINAL}/config.json", final.digests().get("config.json")) or {}
    except (ArtifactError, ValueError) as error:
        log.warning("what the model of %s is for is not known: %s", store.path(run), error)
        return None
    return Use(f"{kind.name}, {task or objective}", _classes_of(model) if task in CLASSIFY else ())


def _classes_of(model: dict[str, Any]) -> tuple[str, ...]:
    """The names of a model's classes, in the order of their ids."""
    names: dict[str, str] = model.get("id2label") or {}
    return tuple(names[each] for each in sorted(names, key=int))


def find_rival(store: Store, gate: PromotionConfig, run: str, measured_on: Basis) -> Move | None:
    """The champion, if a run's model is to be compared with it and its scores were not measured on the same."""
    champion = find_champion(store, gate.name)
    if gate.better_by is None or champion is None or _is_of(champion, run, _model_of(store, run)):
        return None
    if other_use(store, run, champion.run):
        return None  # it is not measured, as it keeps its place
    return None if comparable_scores(gate.metric, measured_on, champion, None) else champion


def look(
    store: Store,
    gate: PromotionConfig,
    run: str,
    scores: dict[str, float],
    measured_on: Basis = None,
    anew: Remeasured | None = None,
    before: list[Move] | None = None,
) -> Verdict:
    """What the gate says of a run's final model, by the moves `before` or those of now; nothing is changed.

    A model for another use than the champion does not pass.
    """
    before = moves(store, gate.name) if before is None else before
    fingerprint, standing = _model_of(store, run), standing_champions(before)
    if standing and (difference := other_use(store, run, standing[-1].run)):
        said = f"{difference}; choose another promotion.name, or promote by hand with another_use=true"
        return Verdict(passed=False, reason=said)
    return judge(gate, run, fingerprint, scores, before, measured_on, anew)


def pass_through(
    store: Store,
    gate: PromotionConfig,
    run: str,
    scores: dict[str, float],
    measured_on: Basis = None,
    anew: Remeasured | None = None,
) -> Verdict:
    """Make a run's final model the champion if the gate lets it, by the champion that it then takes the place of.

    Raises `ArtifactError` if the run has no published final model, or is being removed.
    """
    verdicts: list[Verdict] = []

    def on_top(before: list[Move]) -> Move | None:
        verdict = look(store, gate, run, scores, measured_on, anew, before)
        verdicts.append(verdict)
        if not verdict.passed or verdict.reason == ALREADY:
            return None
        return _promotion(run, fingerprint, scores, verdict.reason, measured_on)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        _add(store, gate.name, on_top)
    return verdicts[-1]


def moves(store: Store, name: str) -> list[Move]:
    """All moves under a name, oldest first. Raises `ArtifactError` if the history is damaged."""
    return _meaning(store, name, store.find_bytes(key_of(name)))


def find_champion(store: Store, name: str) -> Move | None:
    """The champion of a name, if it has one."""
    return next(reversed(moves(store, name)), None)


def find_measured(store: Store, run: str) -> Result | None:
    """What was measured of a run's final model, if it was. Raises `ArtifactError` if the record of that is damaged."""
    return read_result(store, run, read_sealed(store, f"{run}/{CONFIG}") or {})


def promote(
    store: Store,
    name: str,
    run: str,
    scores: dict[str, float],
    reason: str,
    measured_on: Basis = None,
    another_use: bool = False,
) -> Move:
    """Make a run's final model the champion. One that is it already stays, and is returned.

    Raises `ArtifactError` if the run has no published final model, or is being removed, and `RunError` if that is for
    another use than the champion, unless that is asked for.
    """

    def on_top(before: list[Move]) -> Move | None:
        champion = before[-1] if before else None
        if champion is not None and _is_of(champion, run, fingerprint):
            return None
        _require_same_use(store, name, run, champion, another_use)
        return _promotion(run, fingerprint, scores, reason, measured_on)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        return _add(store, name, on_top)[-1]


def roll_back(store: Store, name: str, reason: str) -> Move:
    """Take the champion away; the one before it is champion again.

    Raises `RunError` if there was no other, `ArtifactError` if its model is gone.
    """

    def one_less(before: list[Move]) -> Move:
        earlier = _champion_before(store, name, before)
        return earlier.model_copy(update={"action": "roll back", "time": _now(), "reason": reason})

    return _add(store, name, one_less)[-1]


def check_rollback(store: Store, name: str) -> Move:
    """The champion that a rollback would come to. Raises as `roll_back` does, and changes nothing."""
    return _champion_before(store, name, moves(store, name))


def _champion_before(store: Store, name: str, before: list[Move]) -> Move:
    standing = standing_champions(before)
    if len(standing) < 2:
        raise RunError(f"{store.path(key_of(name))} names no champion before {standing[-1].run if standing else 'any'}")
    earlier = standing[-2]
    if _model_of(store, earlier.run) != earlier.fingerprint:
        raise ArtifactError(f"{store.path(earlier.run)} holds another model than the one that was champion")
    return earlier


def check_promotion(store: Store, name: str, run: str, another_use: bool = False) -> None:
    """Raise as `promote` does, and change nothing."""
    _model_of(store, run)
    _require_same_use(store, name, run, find_champion(store, name), another_use)


def _require_same_use(store: Store, name: str, run: str, champion: Move | None, another_use: bool) -> None:
    """Raise `RunError` if a run's model is for another use than the champion of a name, and that is not asked for."""
    if champion is not None and not another_use and (difference := other_use(store, run, champion.run)):
        raise RunError(
            f"{difference}, and whoever uses {store.path(key_of(name))} would get it. Choose another name, or give "
            "another_use=true if that is meant"
        )


def key_of(name: str) -> str:
    """Where a name's champion is written."""
    return f"models/{name}/{CHAMPION}"


def _promotion(run: str, fingerprint: str, scores: dict[str, float], reason: str, measured_on: Basis) -> Move:
    return Move(
        action="promote",
        run=run,
        fingerprint=fingerprint,
        scores=scores,
        time=_now(),
        reason=reason,
        measured_on=measured_on,
    )


def _add(store: Store, name: str, next_move: Callable[[list[Move]], Move | None]) -> list[Move]:
    """Write the move that follows from those before it, or none; returns all. Decided anew if others were faster."""
    found: list[Move] = []
    tried: bytes | None = None
    key = key_of(name)
    while (raw := store.find_bytes(key)) is None or raw != tried:  # a request may be repeated after its answer was lost
        found = _meaning(store, name, raw)
        move = next_move(found)
        if move is None:
            break
        found.append(move)
        tried = sealed_bytes(key, {"moves": [each.model_dump() for each in found]})
        if store.create(key, tried) if raw is None else store.swap(key, raw, tried):
            break
    return found


def _model_of(store: Store, run: str) -> str:
    manifest = final_manifest(store, run)
    if manifest is None:
        raise ArtifactError(f"{store.path(f'{run}/{FINAL}')} holds no finished model")
    return manifest.fingerprint


def _meaning(store: Store, name: str, raw: bytes | None) -> list[Move]:
    return [] if raw is None else [Move(**move) for move in open_sealed(store, key_of(name), raw)["moves"]]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

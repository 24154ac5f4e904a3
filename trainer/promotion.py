"""Champions: which run's model is the one in use under a name, decided by a gate, with its history.

    models/NAME/champion    the moves, oldest first: a promotion puts a run on top, a rollback takes the top one away

Everything is in one file, which is replaced only by who has read it as it is: a champion and its history never disagree, and of
two promotions at once none is lost.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trainer.config import PromotionConfig
from trainer.errors import ArtifactError, RunError, StorageError
from trainer.holds import holding
from trainer.measures import greater_is_better
from trainer.places import CHAMPION, EVALUATION, FINAL
from trainer.results import Evaluation, FinetuneEvaluation, Verdict
from trainer.runs import final_manifest
from trainer.storage import Store

ALREADY = "it is the champion already"


class Move(BaseModel):
    """A run that became champion, by a promotion or because the one above it was taken away: when, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["promote", "roll back"]
    run: str
    fingerprint: str
    scores: dict[str, float]
    time: str
    reason: str


def judge(gate: PromotionConfig, run: str, fingerprint: str, scores: dict[str, float], before: list[Move]) -> Verdict:
    """Hold the scores of a run's model against the threshold and, if there is a champion, against its scores.

    What was rolled back does not pass again by itself. Raises `RunError` if the metric was not measured.
    """
    standing = _standing(before)
    champion = standing[-1] if standing else None
    same = [move for move in before if (move.run, move.fingerprint) == (run, fingerprint)]
    if champion is not None and champion in same:
        return Verdict(passed=True, reason=ALREADY)
    if same and not any(move in standing for move in same):
        return Verdict(passed=False, reason="it was champion and was rolled back; only flows.promote makes it champion again")
    if gate.metric not in scores:
        raise RunError(f"promotion.metric is {gate.metric!r}, which was not measured; there are {', '.join(sorted(scores))}")
    greater = greater_is_better(gate.metric) if gate.greater_is_better is None else gate.greater_is_better
    score, sign = scores[gate.metric], 1 if greater else -1
    said = f"{gate.metric} {score:.4f}"
    if gate.threshold is not None:
        side = "at least" if greater else "at most"
        if not sign * score >= sign * gate.threshold:
            return Verdict(passed=False, reason=f"{said} is not {side} {gate.threshold:g}")
        said += f" is {side} {gate.threshold:g}"
    if gate.better_by is not None and champion is not None:
        if gate.metric not in champion.scores:
            raise RunError(f"the champion {champion.run} has no {gate.metric!r} to compare with; promote by hand")
        ahead = sign * (score - champion.scores[gate.metric])
        said += f", {ahead:+.4f} on the champion's {champion.scores[gate.metric]:.4f}"
        if not ahead >= gate.better_by:
            return Verdict(passed=False, reason=f"{said}: not {gate.better_by:g} better")
    return Verdict(passed=True, reason=said)


def look(store: Store, gate: PromotionConfig, run: str, scores: dict[str, float]) -> Verdict:
    """What the gate says of a run's final model now; nothing is changed."""
    return judge(gate, run, _model_of(store, run), scores, moves(store, gate.name))


def pass_through(store: Store, gate: PromotionConfig, run: str, scores: dict[str, float]) -> Verdict:
    """Make a run's final model the champion if the gate lets it, by the champion that it then takes the place of.

    Raises `ArtifactError` if the run has no published final model, or is being removed.
    """
    verdicts: list[Verdict] = []

    def on_top(before: list[Move]) -> Move | None:
        verdicts.append(judge(gate, run, fingerprint, scores, before))
        if not verdicts[-1].passed or verdicts[-1].reason == ALREADY:
            return None
        return _promotion(run, fingerprint, scores, verdicts[-1].reason)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        _add(store, gate.name, on_top)
    return verdicts[-1]


def moves(store: Store, name: str) -> list[Move]:
    """All moves under a name, oldest first."""
    raw = _read(store, name)
    return _meaning(store, name, raw) if raw else []


def find_champion(store: Store, name: str) -> Move | None:
    """The champion of a name, if it has one."""
    return next(reversed(moves(store, name)), None)


def measured(store: Store, run: str) -> dict[str, float]:
    """The figures that a run was evaluated with: of all held-out text, or of the validation split; empty if it was not."""
    found = store.read_json(f"{run}/{EVALUATION}")
    if found is None:
        return {}
    return figures(FinetuneEvaluation(**found) if "classification" in found else Evaluation(**found))


def figures(evaluation: Evaluation | FinetuneEvaluation) -> dict[str, float]:
    """An evaluation's figures by name, as a gate's `metric` names them."""
    if isinstance(evaluation, FinetuneEvaluation):
        return evaluation.scores["validation"]
    total = evaluation.scores.total
    return {"loss": total.loss, "perplexity": total.perplexity}


def promote(store: Store, name: str, run: str, scores: dict[str, float], reason: str) -> Move:
    """Make a run's final model the champion. One that is it already stays, and is returned.

    Raises `ArtifactError` if the run has no published final model, or is being removed.
    """

    def on_top(before: list[Move]) -> Move | None:
        champion = before[-1] if before else None
        if champion is not None and (champion.run, champion.fingerprint) == (run, fingerprint):
            return None
        return _promotion(run, fingerprint, scores, reason)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        return _add(store, name, on_top)[-1]


def roll_back(store: Store, name: str, reason: str) -> Move:
    """Take the champion away; the one before it is champion again.

    Raises `RunError` if there was no other, `ArtifactError` if its model is gone.
    """

    def one_less(before: list[Move]) -> Move:
        standing = _standing(before)
        if len(standing) < 2:
            raise RunError(f"{store.path(key_of(name))} names no champion before {standing[-1].run if standing else 'any'}")
        earlier = standing[-2]
        if _model_of(store, earlier.run) != earlier.fingerprint:
            raise ArtifactError(f"{store.path(earlier.run)} holds another model than the one that was champion")
        return earlier.model_copy(update={"action": "roll back", "time": _now(), "reason": reason})

    return _add(store, name, one_less)[-1]


def key_of(name: str) -> str:
    """Where a name's champion is written."""
    return f"models/{name}/{CHAMPION}"


def _standing(found: list[Move]) -> list[Move]:
    """The champions that a rollback would come to, the present one last."""
    standing: list[Move] = []
    for move in found:
        if move.action == "promote":
            standing.append(move)
        else:
            standing.pop()
    return standing


def _promotion(run: str, fingerprint: str, scores: dict[str, float], reason: str) -> Move:
    return Move(action="promote", run=run, fingerprint=fingerprint, scores=scores, time=_now(), reason=reason)


def _add(store: Store, name: str, next_move: Callable[[list[Move]], Move | None]) -> list[Move]:
    """Write the move that follows from those before it, or none; returns all. Decided anew if others were faster."""
    found: list[Move] = []
    tried: bytes | None = None
    while (raw := _read(store, name)) is None or raw != tried:  # a request may be repeated after its answer was lost
        found = _meaning(store, name, raw) if raw else []
        move = next_move(found)
        if move is None:
            break
        found.append(move)
        tried = (json.dumps({"moves": [each.model_dump() for each in found]}, indent=2) + "\n").encode()
        if store.create(key_of(name), tried) if raw is None else store.swap(key_of(name), raw, tried):
            break
    return found


def _model_of(store: Store, run: str) -> str:
    manifest = final_manifest(store, run)
    if manifest is None:
        raise ArtifactError(f"{store.path(f'{run}/{FINAL}')} holds no finished model")
    return manifest.fingerprint


def _read(store: Store, name: str) -> bytes | None:
    try:
        return store.read_bytes(key_of(name))
    except FileNotFoundError:
        return None


def _meaning(store: Store, name: str, raw: bytes) -> list[Move]:
    try:
        return [Move(**move) for move in json.loads(raw)["moves"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{store.path(key_of(name))} cannot be understood ({error}); put back a copy of it") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

"""Champions: which run's model is the one in use under a name, decided by a gate, with its history.

Who names a champion gets the model that is it now, so that one champion takes the place of another of the same use
only.

    models/NAME/champion    the moves, oldest first: a promotion puts a run on top, a rollback takes the top one away

Everything is in one file, which is replaced only by who has read it as it is: a champion and its history never
disagree, and of two promotions at once none is lost.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError, RunError
from trainer.config.kinds import kind_of_run
from trainer.config.runs import PromotionConfig
from trainer.evaluation.measurement import read_result
from trainer.records.evaluations import Result
from trainer.records.holds import holding
from trainer.records.results import Remeasured, Verdict
from trainer.records.sealed import open_sealed, read_listed, read_sealed, sealed_bytes
from trainer.records.shapes import Move
from trainer.registry.gate import ALREADY, Basis, comparable_scores, judge, standing_champions
from trainer.store.names import CHAMPION, CONFIG, FINAL
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

log = logging.getLogger(__name__)


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
    if (
        gate.better_by is None
        or champion is None
        or (champion.run, champion.fingerprint) == (run, _model_of(store, run))
    ):
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
) -> Verdict:
    """What the gate says of a run's final model now; nothing is changed."""
    return _judge(store, gate, run, _model_of(store, run), scores, moves(store, gate.name), measured_on, anew)


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
        verdicts.append(_judge(store, gate, run, fingerprint, scores, before, measured_on, anew))
        if not verdicts[-1].passed or verdicts[-1].reason == ALREADY:
            return None
        return _promotion(run, fingerprint, scores, verdicts[-1].reason, measured_on)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        _add(store, gate.name, on_top)
    return verdicts[-1]


def moves(store: Store, name: str) -> list[Move]:
    """All moves under a name, oldest first. Raises `ArtifactError` if the history is damaged."""
    raw = _read(store, name)
    return [] if raw is None else _meaning(store, name, raw)


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
        if champion is not None and (champion.run, champion.fingerprint) == (run, fingerprint):
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


def _judge(
    store: Store,
    gate: PromotionConfig,
    run: str,
    fingerprint: str,
    scores: dict[str, float],
    before: list[Move],
    measured_on: Basis,
    anew: Remeasured | None,
) -> Verdict:
    """What the gate says; a model for another use than the champion does not pass."""
    standing = standing_champions(before)
    if standing and (difference := other_use(store, run, standing[-1].run)):
        said = f"{difference}; choose another promotion.name, or promote by hand with another_use=true"
        return Verdict(passed=False, reason=said)
    return judge(gate, run, fingerprint, scores, before, measured_on, anew)


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
    while (raw := _read(store, name)) is None or raw != tried:  # a request may be repeated after its answer was lost
        found = [] if raw is None else _meaning(store, name, raw)
        move = next_move(found)
        if move is None:
            break
        found.append(move)
        tried = sealed_bytes(key_of(name), {"moves": [each.model_dump() for each in found]})
        if store.create(key_of(name), tried) if raw is None else store.swap(key_of(name), raw, tried):
            break
    return found


def _model_of(store: Store, run: str) -> str:
    manifest = final_manifest(store, run)
    if manifest is None:
        raise ArtifactError(f"{store.path(f'{run}/{FINAL}')} holds no finished model")
    return manifest.fingerprint


def _read(store: Store, name: str) -> bytes | None:
    return store.find_bytes(key_of(name))


def _meaning(store: Store, name: str, raw: bytes) -> list[Move]:
    return [Move(**move) for move in open_sealed(store, key_of(name), raw)["moves"]]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

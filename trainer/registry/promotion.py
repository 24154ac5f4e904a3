"""Champions: the model in use under a name, selected by a gate, with its history.

A user who refers to a champion by name gets its present model, so a model only replaces a champion of the same use.

    models/NAME/champion    the moves, oldest first: a promotion adds a run on top, a rollback removes the top one

One file holds both and is replaced by compare-and-swap, so champion and history always agree, and of two simultaneous
promotions none is lost. The gate (gate.py) checks whether a model's figures are good enough.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from trainer.common.display import some
from trainer.common.errors import ArtifactError, ConfigError, RunError, TokenizerError
from trainer.config.kinds import kind_of_run
from trainer.config.runs import PromotionConfig
from trainer.evaluation.measurement import read_result
from trainer.models.pretrained import class_names
from trainer.records.evaluations import Result
from trainer.records.lease import holding
from trainer.records.results import Remeasured, Verdict
from trainer.records.sealed import open_sealed, read_listed, read_sealed, sealed_bytes
from trainer.records.shapes import Move
from trainer.registry.gate import ALREADY, Basis, comparable_scores, current_champions, is_of, judge
from trainer.store.artifact_files import REPUBLISH, require_intact
from trainer.store.manifest import require_manifest
from trainer.store.names import CHAMPION, CONFIG, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

log = logging.getLogger(__name__)


def remeasure(champion: Move, measure: Callable[[], Result]) -> Remeasured:
    """The champion's scores measured now, or the problem: its model is missing, or cannot read this data.

    Raises transient errors, such as of a busy hub: a later attempt may measure it.
    """
    named = {"run": champion.run, "fingerprint": champion.fingerprint}
    try:
        found = measure()
    except (ArtifactError, ConfigError, TokenizerError) as error:
        if error.transient:
            raise
        return Remeasured(**named, problem=str(error))
    return Remeasured(**named, scores=found.figures(), measured_on=found.measured_on)


CLASSIFY = ("classification", "multi-label", "tokens")


class Use(NamedTuple):
    """A model's kind and task as text, and its classes in order, if it has any."""

    kind: str
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}, with the classes {some(self.classes)}" if self.classes else self.kind


def other_use(store: Store, run: str, champion: str) -> str | None:
    """Describe how a run's model differs in use from the champion's; None if it does not, or if this is unknown."""
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
        log.warning("the use of the model of %s is not known: %s", store.path(run), error)
        return None
    return Use(f"{kind.name}, {task or objective}", tuple(class_names(model)) if task in CLASSIFY else ())


def champion_to_measure(store: Store, gate: PromotionConfig, run: str, measured_on: Basis) -> Move | None:
    """The champion, if a run's model must be compared with it and their scores have different bases."""
    champion = find_champion(store, gate.name)
    if gate.better_by is None or champion is None or is_of(champion, run, _model_of(store, run)):
        return None
    if other_use(store, run, champion.run):
        return None  # the champion stays, so it need not be measured
    return None if comparable_scores(gate.metric, measured_on, champion, None) else champion


def look(
    store: Store,
    gate: PromotionConfig,
    run: str,
    scores: dict[str, float],
    measured_on: Basis = None,
    remeasured: Remeasured | None = None,
    before: list[Move] | None = None,
) -> Verdict:
    """The gate's verdict on a run's final model, given the moves `before` or the present ones; changes nothing.

    A model with a different use than the champion's does not pass.
    """
    before = moves(store, gate.name) if before is None else before
    fingerprint, champions = _model_of(store, run), current_champions(before)
    if champions and (difference := other_use(store, run, champions[-1].run)):
        reason = f"{difference}; choose another promotion.name, or promote by hand with another_use=true"
        return Verdict(passed=False, reason=reason)
    return judge(gate, run, fingerprint, scores, before, measured_on, remeasured)


def pass_through(
    store: Store,
    gate: PromotionConfig,
    run: str,
    scores: dict[str, float],
    measured_on: Basis = None,
    remeasured: Remeasured | None = None,
) -> Verdict:
    """Make a run's final model the champion if the gate passes it against the champion that it replaces.

    Raises `ArtifactError` if the run has no published final model, or is being removed.
    """
    verdicts: list[Verdict] = []

    def on_top(before: list[Move]) -> Move | None:
        verdict = look(store, gate, run, scores, measured_on, remeasured, before)
        verdicts.append(verdict)
        if not verdict.passed or verdict.reason == ALREADY:
            return None
        return _promotion(run, fingerprint, scores, verdict.reason, measured_on)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        _add(store, gate.name, on_top)
    return verdicts[-1]


def moves(store: Store, name: str) -> list[Move]:
    """All moves under a name, oldest first; raises `ArtifactError` if the history is damaged."""
    return _meaning(store, name, store.find_bytes(key_of(name)))


def find_champion(store: Store, name: str) -> Move | None:
    """The last move under a name, which holds its champion; None if there is none."""
    return next(reversed(moves(store, name)), None)


def find_measured(store: Store, run: str) -> Result | None:
    """The evaluation of a run's final model, if there is one; raises `ArtifactError` if its record is damaged."""
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
    """Make a run's final model the champion; if it already is, return the existing move.

    Raises `ArtifactError` if the run has no published final model, or is being removed, and `RunError` if the model has
    a different use than the champion's, unless `another_use` is set.
    """

    def on_top(before: list[Move]) -> Move | None:
        if _is_champion(store, name, run, fingerprint, before[-1] if before else None, another_use):
            return None
        return _promotion(run, fingerprint, scores, reason, measured_on)

    with holding(store, run):
        fingerprint = _model_of(store, run)
        return _add(store, name, on_top)[-1]


def roll_back(store: Store, name: str, reason: str, run: str | None = None) -> Move:
    """Remove the champion and restore the one before it; if `run` was rolled back last, return the existing move.

    Raises `RunError` if there was none before or if the champion is not `run`, `ArtifactError` if its model is missing.
    """

    def one_less(before: list[Move]) -> Move | None:
        if _is_rolled_back(store, name, before, run):
            return None
        earlier = _champion_before(store, name, before)
        return earlier.model_copy(update={"action": "roll back", "time": _now(), "reason": reason})

    return _add(store, name, one_less)[-1]


def check_rollback(store: Store, name: str, run: str | None = None) -> tuple[Move, bool]:
    """The champion that a rollback would restore, and whether it is restored already; raises as `roll_back` does, and
    changes nothing.
    """
    before = moves(store, name)
    already = _is_rolled_back(store, name, before, run)
    return before[-1] if already else _champion_before(store, name, before), already


def _is_rolled_back(store: Store, name: str, before: list[Move], run: str | None) -> bool:
    """Whether the last move rolled back this run; False for None. Raises `RunError` if another run is the champion."""
    if run is None or not before or before[-1].run == run:
        return False
    if before[-1].action == "roll back" and current_champions(before[:-1])[-1].run == run:
        return True
    raise RunError(
        f"the champion in {store.path(key_of(name))} is {before[-1].run}, not {run}; nothing was rolled back. Set "
        "`run` to the champion that you want to roll back"
    )


def _champion_before(store: Store, name: str, before: list[Move]) -> Move:
    champions = current_champions(before)
    if len(champions) < 2:
        raise RunError(
            f"{store.path(key_of(name))} has no champion{f' before {champions[-1].run}' if champions else ''}"
        )
    earlier = champions[-2]
    if _model_of(store, earlier.run) != earlier.fingerprint:
        raise ArtifactError(f"{store.path(earlier.run)} now holds a different model than the former champion")
    return earlier


def check_promotion(store: Store, name: str, run: str, another_use: bool = False) -> bool:
    """Whether a run's final model is the champion already; raises as `promote` does, and changes nothing."""
    return _is_champion(store, name, run, _model_of(store, run), find_champion(store, name), another_use)


def _is_champion(store: Store, name: str, run: str, fingerprint: str, champion: Move | None, another_use: bool) -> bool:
    """Whether a run's model is the champion already.

    Raises `RunError` if it has a different use than the champion's, unless `another_use` is set.
    """
    if champion is not None and is_of(champion, run, fingerprint):
        return True
    if champion is not None and not another_use and (difference := other_use(store, run, champion.run)):
        raise RunError(
            f"{difference}, and all users of {store.path(key_of(name))} would get it. Choose another name, or set "
            "another_use=true if this is intended"
        )
    return False


def key_of(name: str) -> str:
    """The key of a name's champion file."""
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
    """Append the move that `next_move` returns, if any, and return all; repeated if another process wrote first."""
    found: list[Move] = []
    tried: bytes | None = None
    key = key_of(name)
    while (raw := store.find_bytes(key)) is None or raw != tried:  # a retry may find its own write: response lost
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
    """The fingerprint of a run's final model. Raises `ArtifactError` if it is missing or damaged."""
    key = f"{run}/{FINAL}"
    manifest = require_manifest(store, key, FINAL_KIND, "holds no finished model")
    # Contents in a remote store are compared when they are fetched.
    require_intact(store, key, manifest, REPUBLISH, "changed" if store.local else "sizes")
    return manifest.fingerprint


def _meaning(store: Store, name: str, raw: bytes | None) -> list[Move]:
    return [] if raw is None else [Move(**move) for move in open_sealed(store, key_of(name), raw)["moves"]]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

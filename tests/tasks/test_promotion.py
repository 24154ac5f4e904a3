"""A run that waits for a person's approval."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import promotion
from tests.support import cpu_runtime, failing_first
from tests.trainer.results import a_result
from tests.trainer.stocked_store import add_encoded, add_run, found, keys
from trainer.common import transient
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, FirstRankFailed, StorageError
from trainer.common.progress import silent
from trainer.config.runs import PromotionConfig
from trainer.jobs import InRanks, consider, measure_champion
from trainer.records.lease import held
from trainer.registry.gate import ALREADY
from trainer.registry.promotion import find_champion, look, pass_through
from trainer.store.storage import Store


def test_a_run_that_waits_for_approval_is_not_removed(empty_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add_run(empty_store, "x", add_encoded(empty_store, "x"))
    gate = PromotionConfig(name="lm", threshold=9, approval=True)
    evaluation = a_result({"validation": {"loss": 1.0}})

    def wait() -> None:
        assert held(empty_store) == {run}
        assert keys(found(empty_store, runs_older_than_days=0, remove=True)) == []

    monkeypatch.setattr(promotion, "judge_model", lambda gate, store, *found: look(Store(store), gate, *found))
    monkeypatch.setattr(promotion, "wait_for_approval", wait)
    monkeypatch.setattr(promotion, "crown", lambda gate, store, *found: pass_through(Store(store), gate, *found))
    verdict = promotion.consider(gate, empty_store.url, run, evaluation, measure=lambda run: evaluation)
    champion = find_champion(empty_store, "lm")
    assert verdict is not None and verdict.passed and champion is not None and champion.run == run
    assert held(empty_store) == set()


def test_without_a_server_a_model_that_needs_approval_is_reported_as_not_promoted(
    empty_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = add_run(empty_store, "x", add_encoded(empty_store, "x"))
    gate = PromotionConfig(name="lm", threshold=9, approval=True)
    evaluation = a_result({"validation": {"loss": 1.0}})
    verdict = consider(gate, empty_store, run, evaluation, None)
    assert not verdict.passed and find_champion(empty_store, "lm") is None
    told = "gate not met: loss 1.0000 is at most 9; not promoted: promotion.approval requires a person's approval"
    assert capsys.readouterr().out.startswith(told)

    pass_through(empty_store, gate, run, evaluation.figures(), evaluation.measured_on)
    verdict = consider(gate, empty_store, run, evaluation, None)
    assert (verdict.passed, verdict.reason) == (True, ALREADY)


def test_ranks_wait_for_a_store_that_is_away_when_a_model_passes_its_gate(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(empty_store, "x", add_encoded(empty_store, "x"))
    job = SimpleNamespace(promotion=PromotionConfig(name="lm", threshold=9), store=empty_store.url)
    away = StorageError("the store is away", transient=True)
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr("trainer.registry.promotion.pass_through", failing_first([away], pass_through))
    plan: Any = None
    verdict = InRanks(cpu_runtime()).consider(job, plan, plan, run, a_result({"validation": {"loss": 1.0}}))
    champion = find_champion(empty_store, "lm")
    assert verdict is not None and verdict.passed and champion is not None and champion.run == run


@pytest.mark.parametrize(
    ("problem", "status"),
    [("ConfigError: it has no chat template", EXIT_BAD_INPUT), ("StorageError: the store is away", EXIT_PREEMPTED)],
)
def test_a_champion_that_the_first_rank_cannot_measure_ends_another_rank_only_with_it(
    problem: str, status: int, empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise FirstRankFailed(f"rank 0 ended with {problem}", status)

    job: Any = SimpleNamespace(promotion=PromotionConfig(name="lm", threshold=9), store=empty_store.url)
    evaluation = a_result({"validation": {"loss": 1.0}})
    champion = SimpleNamespace(run="runs/champion", fingerprint="0")
    monkeypatch.setattr("trainer.registry.promotion.champion_to_measure", lambda *_: champion)
    monkeypatch.setattr("trainer.pipelines.any_kind.evaluate_run", fail)
    with nullcontext() if status == EXIT_BAD_INPUT else pytest.raises(FirstRankFailed, match="the store is away"):
        assert measure_champion(job, "runs/x", evaluation, silent(), cpu_runtime()) is None

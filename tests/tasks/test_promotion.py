"""A run that waits for a person's approval."""

import pytest

from tasks import promotion
from tests.trainer.results import a_result
from tests.trainer.stocked_store import add_encoded, add_run, found, keys
from trainer.config.runs import PromotionConfig
from trainer.records.lease import held
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

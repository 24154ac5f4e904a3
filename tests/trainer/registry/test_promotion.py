"""Champions: the gate, the history, and moves at the same time."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from tests.support import small_job
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.small_jobs import Finished
from trainer.common.display import plain_score
from trainer.common.errors import ArtifactError, ConfigError, RunError, StorageError
from trainer.config.labelled import FinetuneJob
from trainer.config.runs import PromotionConfig
from trainer.models.pretrained import find_model
from trainer.preflight.resources import check_optimization
from trainer.records.basis import TextBasis
from trainer.records.lease import held
from trainer.records.results import Remeasured, Verdict
from trainer.records.sealed import sealed_bytes, write_sealed
from trainer.records.shapes import Move
from trainer.registry.gate import judge
from trainer.registry.promotion import (
    champion_to_measure,
    check_promotion,
    check_rollback,
    find_champion,
    find_measured,
    moves,
    pass_through,
    promote,
    roll_back,
)
from trainer.store.manifest import fingerprint as name_of
from trainer.store.manifest import publish_folder
from trainer.store.names import CONFIG, FINAL, FINAL_KIND
from trainer.store.storage import Store

ON = TextBasis(
    held_out={"code": "ab"}, shards=[], max_windows=None, tokenizer="t", keeps_text=True, context=32, precision="fp32"
)  # fmt: skip
"""What all figures here are measured on."""


def finish(store: Store, run: str, fingerprint: str = "0123456789abcdef") -> str:
    """Publish a final model for a run; returns its key."""
    with store.staging() as folder:
        (folder / "config.json").write_text("{}")
        publish_folder(store, folder, f"runs/{run}/{FINAL}", FINAL_KIND, fingerprint, {"run": fingerprint})
    return f"runs/{run}"


def gate(**values: Any) -> PromotionConfig:
    return PromotionConfig.model_validate({"name": "lm", **values})


def champion(loss: float, run: str = "runs/old", fingerprint: str = "f") -> Move:
    scores = {"loss": loss, "accuracy": 0.8}
    return Move(action="promote", run=run, fingerprint=fingerprint, scores=scores, time="t", reason="r", measured_on=ON)


@pytest.mark.parametrize(
    ("values", "scores", "before", "passed"),
    [
        ({"threshold": 3.0}, {"loss": 2.9}, None, True),
        ({"threshold": 3.0}, {"loss": 3.0}, None, True),
        ({"threshold": 3.0}, {"loss": 3.1}, None, False),
        ({"threshold": 3.0}, {"loss": float("nan")}, None, False),
        ({"better_by": 0.1}, {"loss": 9.0}, None, True),
        ({"better_by": 0.1}, {"loss": 2.8}, 3.0, True),
        ({"better_by": 0.1}, {"loss": 2.95}, 3.0, False),
        ({"better_by": 0.0}, {"loss": 3.0}, 3.0, True),
        ({"better_by": 0.0}, {"loss": float("nan")}, 3.0, False),
        ({"threshold": 2.0, "better_by": 0.1}, {"loss": 2.5}, 3.0, False),
        ({"metric": "accuracy", "greater_is_better": True, "better_by": 0.05}, {"accuracy": 0.86}, 3.0, True),
        ({"metric": "accuracy", "threshold": 0.9}, {"accuracy": 0.86}, 3.0, False),
        ({"metric": "accuracy", "greater_is_better": False, "threshold": 0.9}, {"accuracy": 0.86}, 3.0, True),
    ],
)
def test_the_gate_passes_what_it_should(
    values: dict[str, Any], scores: dict[str, float], before: float | None, passed: bool
) -> None:
    verdict = judge(gate(**values), "runs/new", "new", scores, [] if before is None else [champion(before)], ON)
    assert verdict.passed == passed
    assert f"{next(iter(scores.values())):.4f}" in verdict.reason


@pytest.mark.parametrize(("best", "asked"), [(False, None), (None, True), (True, False), (False, False), (None, None)])
def test_a_figure_that_decides_twice_has_one_direction(tmp_path: Path, best: bool | None, asked: bool | None) -> None:
    values = {
        **finetune_job(tmp_path, tmp_path, "any").model_dump(mode="json"),
        "evaluation": {"best_by": "agreement", "greater_is_better": best},
        "promotion": {"name": "lm", "metric": "agreement", "better_by": 0, "greater_is_better": asked},
    }
    greater = [True if said is None else said for said in (best, asked)]  # by its name it would be better
    said = "are both 'agreement', but .* value is better for the first, .*: set greater_is_better in both"
    with nullcontext() if greater[0] == greater[1] else pytest.raises(ConfigError, match=said):
        check_optimization(FinetuneJob.model_validate(values))
    check_optimization(FinetuneJob.model_validate({**values, "promotion": {**values["promotion"], "metric": "loss"}}))


@pytest.mark.parametrize(
    ("metrics", "metric", "asked", "refused"),
    [
        (None, "accuracy", {"threshold": 95}, "threshold is 95, .* at most 1: set 0.95 for 95 %"),
        (["f1"], "f1", {"threshold": 1.5}, "threshold is 1.5, .* at most 1: set 0.015 for 1.5 %"),
        (None, "accuracy", {"better_by": 1}, "better_by is 1, .* at most 1: set 0.01 for 1 %"),
        (None, "accuracy", {"threshold": 1, "better_by": 0.5}, None),
        (["mse"], "mse", {"threshold": 95}, None),
        (["own.py"], "accuracy", {"threshold": 95}, None),
    ],
)
def test_a_gate_in_percent_is_refused_before_work(
    tmp_path: Path, metrics: list[str] | None, metric: str, asked: dict[str, float], refused: str | None
) -> None:
    values = {
        **finetune_job(tmp_path, tmp_path, "any").model_dump(mode="json"),
        "evaluation": {"metrics": metrics},
        "promotion": {"name": "lm", "metric": metric, **asked},
    }
    with nullcontext() if refused is None else pytest.raises(ConfigError, match=refused):
        check_optimization(FinetuneJob.model_validate(values))


@pytest.mark.parametrize(
    ("figure", "refused"), [("acc", True), ("acc_norm", True), ("perplexity", False), ("exact_match,strict", False)]
)
def test_a_gate_in_percent_on_an_accuracy_of_lm_eval_is_refused_before_work(
    tmp_path: Path, figure: str, refused: bool
) -> None:
    job = small_job(
        tmp_path, tmp_path, evaluation__harness={"tasks": ["group"]},
        promotion={"name": "lm", "metric": f"harness/group/{figure}", "threshold": 60, "greater_is_better": True},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"at most 1: set 0\.6 for 60 %") if refused else nullcontext():
        check_optimization(job)


@pytest.mark.parametrize(
    ("loss", "ahead", "passed"),
    [
        (3.0, "+0.0000", True),
        (3 + 1e-10, "+0.0000", True),
        (3.00000001, "-0.00000001", False),
        (2.99998, "+0.00002", True),
    ],
)
def test_a_difference_that_rounds_to_nothing_is_told_in_full_if_it_decides(
    loss: float, ahead: str, passed: bool
) -> None:
    verdict = judge(gate(better_by=0.0), "runs/new", "new", {"loss": loss}, [champion(3.0)], ON)
    assert verdict.passed == passed
    needed = "" if passed else "; needed at least +0"
    assert verdict.reason == f"loss {plain_score(loss)}, {ahead} against the champion's 3.0000{needed}"


@pytest.mark.parametrize(("metric", "found"), [("accuracy", 0.81999), ("loss", 0.820004)])
def test_a_figure_that_misses_the_threshold_by_little_does_not_seem_to_reach_it(metric: str, found: float) -> None:
    verdict = judge(gate(metric=metric, threshold=0.82), "runs/new", "new", {metric: found}, [], ON)
    side = "at least" if metric == "accuracy" else "at most"
    assert verdict == Verdict(passed=False, reason=f"{metric} {found} is not {side} 0.82")


@pytest.mark.parametrize("found", [math.nan, math.inf])
def test_what_cannot_be_compared_with_the_champions_figure_is_told_with_the_way_out(found: float) -> None:
    verdict = judge(gate(metric="loss", better_by=0.1), "runs/new", "g", {"loss": 1.0}, [champion(found)], ON)
    assert not verdict.passed
    assert verdict.reason == (
        f"loss 1.0000, but that of the champion is {found}, with which nothing can be compared; use `headrace promote`"
    )


def test_what_is_asked_for_to_the_last_digit_is_enough() -> None:
    macro = (0.8 + 0.96 + 1.0) / 3
    assert macro < 0.92, "by rounding"
    assert judge(gate(metric="f1", threshold=0.92), "runs/new", "new", {"f1": macro}, [], ON).passed
    asked = gate(better_by=0.01)
    pairs = [({"loss": step / 100}, [champion((step + 1) / 100)]) for step in range(100)]
    assert all(judge(asked, "runs/new", "new", *pair, ON).passed for pair in pairs)
    assert not judge(asked, "runs/new", "new", {"loss": 0.811}, [champion(0.82)], ON).passed


def test_a_gate_without_a_condition_or_with_a_metric_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValidationError, match="set threshold, or better_by"):
        gate()
    with pytest.raises(RunError, match="'f1', which was not measured; measured were loss"):
        judge(gate(metric="f1", threshold=1), "runs/new", "new", {"loss": 1.0}, [])


def test_another_model_of_the_champions_run_is_judged_and_what_was_rolled_back_does_not_come_again() -> None:
    old, new = champion(2.0), champion(1.5, run="runs/new")
    assert judge(gate(threshold=3), "runs/old", "f", {"loss": 9.0}, [old]).reason == "it is the champion already"
    assert not judge(gate(threshold=3), "runs/old", "another", {"loss": 9.0}, [old]).passed
    undone = [old, new, old.model_copy(update={"action": "roll back"})]
    assert "was rolled back" in judge(gate(threshold=3), "runs/new", "f", {"loss": 1.5}, undone).reason
    assert judge(gate(threshold=3), "runs/new", "f", {"loss": 1.5}, [*undone, new]).passed
    again = [new, old, new.model_copy(update={"time": "later"}), old.model_copy(update={"action": "roll back"})]
    assert "was rolled back" in judge(gate(threshold=3), "runs/new", "f", {"loss": 1.5}, again).reason


def test_what_another_model_took_the_place_of_does_not_come_again_by_a_threshold_alone() -> None:
    old, new = champion(2.0), champion(1.5, run="runs/new")
    verdict = judge(gate(threshold=3), "runs/old", "f", {"loss": 2.0}, [old, new])
    assert not verdict.passed and "until runs/new replaced it" in verdict.reason
    assert judge(gate(better_by=0.1), "runs/old", "f", {"loss": 1.2}, [old, new], ON).passed


def test_figures_that_were_measured_of_a_former_champion_do_not_count_for_the_present_one() -> None:
    elsewhere = ON.model_copy(update={"held_out": {"code": "cd"}})
    former = Remeasured(run="runs/former", fingerprint="f", scores={"loss": 5.0}, measured_on=elsewhere)
    asked, found = gate(better_by=0.1), {"loss": 3.0}
    verdict = judge(asked, "runs/new", "new", found, [champion(2.0)], elsewhere, former)
    assert not verdict.passed and "run the job again to measure the champion again" in verdict.reason
    present = former.model_copy(update={"run": "runs/old"})
    assert judge(asked, "runs/new", "new", found, [champion(2.0)], elsewhere, present).passed


def test_a_model_is_judged_by_the_champion_whose_place_it_takes(atomic_store: Store) -> None:
    runs = {finish(atomic_store, f"run-{number}", f"{number:016x}"): 3.0 - number / 10 for number in range(6)}
    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(lambda run: pass_through(atomic_store, gate(better_by=0.05), run, {"loss": runs[run]}, ON), runs))
    losses = [move.scores["loss"] for move in moves(atomic_store, "lm")]
    assert losses == sorted(losses, reverse=True) and losses[-1] == 2.5


def test_a_move_whose_answer_was_lost_is_made_once(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("a", "b", "c"):
        promote(any_store, "lm", finish(any_store, run), {}, "why")
    swap = Store.swap

    def repeated(self: Store, key: str, expected: bytes, data: bytes) -> bool:
        assert swap(self, key, expected, data)
        return swap(self, key, expected, data)

    monkeypatch.setattr(Store, "swap", repeated)
    assert roll_back(any_store, "lm", "broke").run == "runs/b"
    assert len(moves(any_store, "lm")) == 4


def test_a_promotion_counts_though_its_hold_cannot_be_removed(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finish(empty_store, "a")
    monkeypatch.setattr(Store, "delete", Mock(side_effect=StorageError("the store is away", transient=True)))
    assert promote(empty_store, "lm", run, {}, "why") == find_champion(empty_store, "lm")
    assert held(empty_store) == {run}, "until it ends"


def test_a_champion_whose_model_was_replaced_is_not_taken(empty_store: Store) -> None:
    promote(empty_store, "lm", finish(empty_store, "a"), {}, "why")
    finish(empty_store, "a", "fedcba9876543210")
    with pytest.raises(ArtifactError, match="different model than the one promoted as models/lm/champion"):
        find_model(empty_store, "models/lm/champion")


@pytest.mark.parametrize("damaged", [True, False])
def test_a_model_whose_files_are_damaged_or_gone_becomes_no_champion(damaged: bool, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first, second = finish(store, "a"), finish(store, "b")
    promote(store, "lm", first, {}, "the first")
    promote(store, "lm", second, {}, "the second")
    file = Path(store.path(f"{first}/{FINAL}/config.json"))
    if damaged:
        file.write_text("[]")
    else:
        file.unlink()
    for move in (lambda: roll_back(store, "lm", "why"), lambda: promote(store, "lm", first, {}, "again")):
        with pytest.raises(ArtifactError, match=r"final/config.json .*; run its command again to publish it again"):
            move()
    champion_now = find_champion(store, "lm")
    assert champion_now is not None and champion_now.run == second


def test_promotions_and_rollbacks_keep_their_history(any_store: Store) -> None:
    assert find_champion(any_store, "lm") is None
    for run in ("a", "b", "c"):
        promote(any_store, "lm", finish(any_store, run), {"loss": 1.0}, f"why {run}")
    assert promote(any_store, "lm", "runs/c", {"loss": 1.0}, "again").reason == "why c", "it is the champion already"
    for expected in ("runs/b", "runs/a"):
        assert roll_back(any_store, "lm", "broke").run == expected
        assert find_champion(any_store, "lm") == moves(any_store, "lm")[-1]
    with pytest.raises(RunError, match="has no champion before runs/a"):
        roll_back(any_store, "lm", "broke")
    promote(any_store, "lm", "runs/c", {"loss": 1.0}, "mended")
    assert roll_back(any_store, "lm", "broke again").run == "runs/a", "what was rolled back is not come back to"
    assert [(move.action, move.run) for move in moves(any_store, "lm")] == [
        ("promote", "runs/a"), ("promote", "runs/b"), ("promote", "runs/c"), ("roll back", "runs/b"),
        ("roll back", "runs/a"),
        ("promote", "runs/c"), ("roll back", "runs/a"),
    ]  # fmt: skip
    assert find_model(any_store, "models/lm/champion").key == f"runs/a/{FINAL}"


def test_a_rollback_of_a_named_run_can_be_repeated(any_store: Store) -> None:
    for run in ("a", "b", "c"):
        promote(any_store, "lm", finish(any_store, run), {}, "why")
    with pytest.raises(RunError, match=r"the champion in .*models/lm/champion is runs/c, not runs/b"):
        roll_back(any_store, "lm", "why", "runs/b")
    made = roll_back(any_store, "lm", "broke", "runs/c")
    assert roll_back(any_store, "lm", "broke", "runs/c") == made == find_champion(any_store, "lm")
    assert check_rollback(any_store, "lm", "runs/c") == (made, True)
    assert roll_back(any_store, "lm", "broke too", "runs/b").run == "runs/a"
    promote(any_store, "lm", "runs/c", {}, "mended")
    with pytest.raises(RunError, match="is runs/c, not runs/b"):
        roll_back(any_store, "lm", "broke too", "runs/b")
    assert len(moves(any_store, "lm")) == 6


def test_of_promotions_at_the_same_time_none_is_lost(atomic_store: Store) -> None:
    runs = [finish(atomic_store, f"run-{number}") for number in range(6)]
    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(lambda run: promote(atomic_store, "lm", run, {}, "at once"), runs))
    assert sorted(move.run for move in moves(atomic_store, "lm")) == runs


def test_a_run_that_is_not_finished_or_was_made_anew_is_refused(empty_store: Store) -> None:
    with pytest.raises(ArtifactError, match="runs/none/final holds no finished model"):
        promote(empty_store, "lm", "runs/none", {}, "why")
    with pytest.raises(RunError, match=r"has no champion$"):
        roll_back(empty_store, "lm", "why")
    promote(empty_store, "lm", finish(empty_store, "a"), {}, "why")
    promote(empty_store, "lm", finish(empty_store, "b"), {}, "why")
    finish(empty_store, "a", "fedcba9876543210")
    with pytest.raises(ArtifactError, match="runs/a now holds a different model than the former champion"):
        roll_back(empty_store, "lm", "why")
    assert [move.run for move in moves(empty_store, "lm")] == ["runs/a", "runs/b"]


def test_a_champion_that_cannot_be_read_is_an_error_and_is_not_overwritten(empty_store: Store) -> None:
    run = finish(empty_store, "a")
    for content in (b"half", json.dumps({"moves": [{}]}).encode(), sealed_bytes("models/lm/champion", {"moves": [{}]})):
        empty_store.write_bytes("models/lm/champion", content)
        for operation in (lambda: promote(empty_store, "lm", run, {}, "why"), lambda: find_champion(empty_store, "lm")):
            with pytest.raises(ArtifactError, match=r"champion is damaged: .* restore a copy"):
                operation()
        assert empty_store.read_bytes("models/lm/champion") == content


def test_the_figures_are_those_of_the_runs_evaluation(finished: Finished) -> None:
    store = Store(str(finished.store))
    found = find_measured(store, finished.run)
    saved = json.loads(Path(finished.store, finished.run, "eval.json").read_text())["total"]["figures"]
    assert found is not None and found.figures() == {
        name: saved[name] for name in ("loss", "perplexity", "bits_per_byte")
    }
    assert find_measured(store, "runs/none") is None


USES: dict[str, dict[str, Any]] = {
    "causal": {"job": {"data": {"corpora": []}}},
    "masked": {"job": {"data": {"corpora": []}, "training": {"objective": "masked"}}},
    "chat": {"job": {"data": {"task": "chat"}}},
    "moods": {"job": {"data": {"source": "csv", "task": "classification"}}, "classes": ["bad", "good"]},
    "swapped": {"job": {"data": {"source": "csv", "task": "classification"}}, "classes": ["good", "bad"]},
    "several": {"job": {"data": {"source": "csv", "task": "multi-label"}}, "classes": ["bad", "good"]},
    "words": {"job": {"data": {"source": "csv", "task": "tokens"}}, "classes": ["bad", "good"]},
    "numbers": {"job": {"data": {"source": "csv", "task": "regression"}}, "classes": ["LABEL_0"]},
}


def finish_use(store: Store, run: str, use: str) -> str:
    """Publish a final model of a use for a run; returns its key."""
    said = USES[use]
    identity = {"name": run}
    values = {"fingerprint": name_of(identity), "identity": identity, "fork": None, "start": None}
    data = {"tokenizer": {"key": "tokenizers/x"}, "shards": [{"key": "shards/x"}], "key": "encoded/x"}
    write_sealed(
        store,
        f"runs/{run}/{CONFIG}",
        {**values, "data": data, **{k: said[k] for k in said if k != "classes"}},
    )
    with store.staging() as folder:
        labels = {str(number): name for number, name in enumerate(said.get("classes", ["LABEL_0", "LABEL_1"]))}
        (folder / "config.json").write_text(json.dumps({"id2label": labels}))
        publish_folder(store, folder, f"runs/{run}/{FINAL}", FINAL_KIND, name_of([run, use]), {"run": run})
    return f"runs/{run}"


@pytest.mark.parametrize("new", USES)
@pytest.mark.parametrize("old", USES)
def test_a_champion_is_replaced_by_a_model_for_the_same_use_alone(empty_store: Store, old: str, new: str) -> None:
    champion, run = finish_use(empty_store, "old", old), finish_use(empty_store, "new", new)
    promote(empty_store, "lm", champion, {"loss": 3.0}, "why", ON)
    for values in ({"threshold": 3.0}, {"better_by": 0.1}):
        verdict = pass_through(empty_store, gate(**values), run, {"loss": 2.0}, ON)
        assert verdict.passed is (old == new)
        if old == new:
            roll_back_to(empty_store, champion)
        else:
            assert "is for another use" in verdict.reason and "promote by hand with another_use=true" in verdict.reason
            assert champion_to_measure(empty_store, gate(**values), run, None) is None, "which is not measured in vain"
    if old != new:
        for refused in (check_promotion, lambda *what: promote(*what, {}, "by hand")):
            with pytest.raises(
                RunError, match=r"new is for another use .* than the champion runs/old .*set another_use=true"
            ):
                refused(empty_store, "lm", run)
        assert not check_promotion(empty_store, "lm", run, another_use=True)
        promote(empty_store, "lm", run, {}, "it is meant", another_use=True)
    promote(empty_store, "lm", run, {}, "by hand")
    assert moves(empty_store, "lm")[-1].run == run
    assert check_promotion(empty_store, "lm", run)


def roll_back_to(store: Store, run: str) -> None:
    """Have the history be that of one promotion again."""
    first = moves(store, "lm")[0]
    assert first.run == run
    store.write_bytes("models/lm/champion", sealed_bytes("models/lm/champion", {"moves": [first.model_dump()]}))


def test_a_champion_of_which_the_records_do_not_tell_the_use_is_replaced(empty_store: Store) -> None:
    promote(empty_store, "lm", finish(empty_store, "old"), {}, "why")
    promote(empty_store, "lm", finish_use(empty_store, "new", "moods"), {}, "why")
    assert [move.run for move in moves(empty_store, "lm")] == ["runs/old", "runs/new"]

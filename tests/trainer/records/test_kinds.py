"""Of which kind a record is that is read back of a store."""

import pytest

from tests.trainer.results import a_result
from trainer.config.kinds import KINDS, kind_of_run, load
from trainer.config.training import OptimizationConfig
from trainer.data.step_plan import plan_batches
from trainer.kinds.kind import Kind, LazyFunction
from trainer.records.plans import CorpusPlan, StepPlan, TuningPlan, plan_type
from trainer.records.shapes import require_shape

PLAN = TuningPlan(
    examples=8,
    validation_examples=0,
    **plan_batches(OptimizationConfig(epochs=1, global_batch=2, learning_rate=0.1), samples=8, ranks=1).model_dump(),
)


def test_a_run_is_of_the_kind_whose_mark_its_job_has() -> None:
    assert all(isinstance(kind.kind, Kind) for kind in KINDS) and len({kind.name for kind in KINDS}) == len(KINDS)
    for data, name in (
        ({"corpora": []}, "pretraining"),
        ({"source": "csv", "task": "tokens"}, "fine-tuning"),
        ({"task": "chat", "source": "jsonl"}, "instruction tuning"),
    ):
        assert kind_of_run({"job": {"data": data}, "data": {"key": "encoded/a", "shards": [1]}}).name == name


def test_data_of_no_kind_is_refused_with_what_each_kind_names() -> None:
    for config in ({}, {"job": {}}, {"job": {"data": {"shards": []}}}):
        with pytest.raises(
            ValueError, match=r"job.data has neither `corpora` \(pretraining\) nor `source` \(fine-tuning\)"
        ):
            kind_of_run(config)


def test_a_plan_that_lacks_a_field_is_taken_for_the_one_that_it_is_meant_to_be() -> None:
    corpus = CorpusPlan(
        name="a", documents=1, tokens=9, unused_tokens=0, validation_tokens=0, windows=1, probability=1.0, passes=1.0
    )
    step = StepPlan(
        **PLAN.model_dump(exclude={"unit", "examples", "validation_examples"}),
        corpora=[corpus],
        windows=1,
        tokens_per_step=8,
    )
    for plan in (PLAN, step):
        assert plan_type(plan.model_dump()) is type(plan)
    assert (plan_type({"corpora": []}), plan_type({"examples": 3})) == (StepPlan, TuningPlan)
    with pytest.raises(ValueError, match="corpora: Field required"):
        require_shape("runs/a/plan.json", step.model_dump(exclude={"corpora"}))


def test_a_result_without_the_figures_that_a_gate_asks_for_is_refused() -> None:
    values = a_result({"validation": {}}).recorded()
    require_shape("runs/a/eval.json", values)
    groups = {"test": values["groups"]["validation"]}
    with pytest.raises(ValueError, match="no metrics of the validation split"):
        require_shape("runs/a/eval.json", {**values, "groups": groups})
    require_shape("runs/a/eval.json", {**values, "groups": groups, "files": ["new.csv"]})
    for change, problem in (
        ({"by": "corpus"}, "measured_on has the wrong type for metrics by corpus"),
        ({"by": "task", "measured_on": {"harness": {}}}, "by: Input should be 'corpus' or 'split'"),
        ({"recipe": {"of": "another"}}, "its format is another, or its fingerprint does not match its recipe"),
        ({"groups": {"validation": {"figures": {}}}}, "it has metrics without a loss"),
    ):
        with pytest.raises(ValueError, match=problem):
            require_shape("runs/a/eval.json", {**values, **change})


def test_what_a_kind_names_is_there() -> None:
    for kind in KINDS:
        named = [each.path for each in vars(kind.kind).values() if isinstance(each, LazyFunction)]
        assert len(named) >= 4
        assert all(load(path) for path in (*named, kind.kind.compared))

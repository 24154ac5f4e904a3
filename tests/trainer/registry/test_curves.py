"""Curves as SVG for a page."""

import math
import re
from xml.etree import ElementTree

import matplotlib

from trainer.registry.curves import MAX_POINTS, draw_curves, standard_curves, thin, with_planned_rates

CURVES = standard_curves("nats a token", ["accuracy"])


def records(count: int, loss: float = 2.0) -> list[dict]:
    rest = {"learning_rate": 1e-3, "grad_norm": 0.5, "tokens_per_second": 100.0}
    return [{"kind": "train", "step": step, "loss": loss, **rest} for step in range(1, count + 1)]


def test_curves_are_whole_elements_in_the_colours_of_the_page() -> None:
    for svg in draw_curves(CURVES, records(50), 50).values():
        ElementTree.fromstring(svg)
        assert "var(--first)" in svg
        assert not re.search(r"(fill|stroke): #", svg)


def test_settings_of_the_process_neither_matter_nor_change() -> None:
    expected = draw_curves(CURVES, records(50), 50)
    with matplotlib.rc_context({"font.size": 30.0, "svg.fonttype": "path"}):
        assert draw_curves(CURVES, records(50), 50) == expected
        assert matplotlib.rcParams["font.size"] == 30.0


def test_values_that_are_not_finite_leave_gaps() -> None:
    assert "Loss" not in draw_curves(CURVES, records(3, math.nan), 3)
    assert "Loss" in draw_curves(CURVES, [*records(3, math.inf), *records(1)], 3)


def test_other_validation_figures_have_curves_of_their_own() -> None:
    figures = [{"kind": "evaluation", "step": step, "loss": 1.0, "accuracy": 0.5 + step / 100} for step in (0, 10)]
    drawn = draw_curves(CURVES, [*figures, {"kind": "evaluation", "step": 20, "loss": 1.0}], 20)
    assert list(drawn) == ["Loss", "Validation accuracy"]


def test_names_of_figures_are_text() -> None:
    name = 'r"\\1<b>&'
    (svg,) = draw_curves(standard_curves("", [name]), [{"kind": "evaluation", "step": 1, name: 0.5}], 1).values()
    assert ElementTree.fromstring(svg).get("aria-label") == f"Validation {name}"


def test_a_run_of_which_only_the_first_evaluation_is_left_has_a_curve() -> None:
    assert list(draw_curves(CURVES, [{"kind": "evaluation", "step": 0, "loss": 2.0}], 0)) == ["Loss"]


def test_run_without_records_has_no_curves() -> None:
    assert draw_curves(CURVES, [], 10) == {}


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(step, 1.0) for step in range(100_000)]
    points[54_321] = (54_321, 9.0)
    kept = thin(points)
    assert len(kept) <= MAX_POINTS + 2
    assert {points[0], points[-1], (54_321, 9.0)} <= set(kept)
    assert kept == sorted(kept)


def test_the_learning_rate_is_drawn_as_planned_up_to_the_last_step_recorded() -> None:
    planned = {"kind": "schedule", "step": 0, "rates": [[0, 0.0], [5, 5e-4], [10, 1e-3], [400, 0.0], [500, 0.0]]}
    few = [{**record, "step": 200 * record["step"]} for record in records(2)]
    drawn = with_planned_rates([planned, *few])
    rates = [(record["step"], record["learning_rate"]) for record in drawn if "learning_rate" in record]
    assert rates == [(0, 0.0), (5, 5e-4), (10, 1e-3), (200, 1e-3), (400, 1e-3), (400, 0.0)]
    before, after = (draw_curves(CURVES, each, 400) for each in (few, drawn))
    assert list(before) == list(after)
    assert [title for title in after if before[title] != after[title]] == ["Learning rate"]

"""The curves of a run as SVG text for a web page, byte-identical for the same records.

Colours are CSS variables of the page, so that the curves follow its light or dark theme.
"""

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainer.config.evaluation import PREFIX
from trainer.training.metrics_reader import ASKED, SCHEDULE

Records = Sequence[dict[str, Any]]

MAX_POINTS = 1200
MARKED_POINTS = 40
THOUSANDS = 2000
MOST_IN_A_ROW = 8
MOST_TASKS = 12
INCHES = (5.2, 2.9)
NAMES = ("ink", "faint", "first", "second", "third", "fourth", "fifth", "sixth")
COLOURS = {f"#{3 * f'{place:02}'}": f"var(--{name})" for place, name in enumerate(NAMES, 1)}
INK, FAINT, *SERIES = COLOURS
FIRST, SECOND = SERIES[:2]
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.size": 9.5, "text.color": INK, "figure.facecolor": "none", "axes.facecolor": "none",
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.formatter.limits": (-3, 6),
    "axes.formatter.useoffset": False,
    "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.grid": True,
    "grid.color": FAINT, "grid.linewidth": 0.4, "lines.markersize": 3.6, "legend.frameon": False,
}  # fmt: skip


class Line(NamedTuple):
    """A labelled line of a chart: the values of a field over steps, from records of one kind."""

    label: str
    kind: str
    field: str
    colour: str
    dashes: str = "-"


class Curve(NamedTuple):
    """One chart: its name and title, the unit of its vertical axis, whether that starts at 0, and its lines."""

    name: str
    title: str
    unit: str
    from_zero: bool
    lines: tuple[Line, ...]


def standard_curves(unit: str, metrics: Sequence[str] = (), label: Callable[[str], str] = str) -> list[Curve]:
    """The curves of a run: loss in this unit, other validation figures, learning rate, gradient norm and speed.

    `metrics` are the figures' names in the records; `label` returns the displayed name of one.
    """

    def trained(name: str, title: str, unit: str) -> Curve:
        return Curve(name, title, unit, True, (Line("train", "train", name, FIRST),))

    losses = (Line("train", "train", "loss", FIRST), Line("validation", "evaluation", "loss", SECOND))
    return [
        Curve("loss", "Loss", unit, False, losses),
        *(
            Curve(figure, f"Validation {label(figure)}", "", False, (Line("validation", "evaluation", figure, SECOND),))
            for figure in metrics
        ),
        trained("learning_rate", "Learning rate", ""),
        trained("grad_norm", "Gradient norm, before clipping", ""),
        trained("tokens_per_second", "Speed", "tokens a second"),
    ]


def task_curves(records: Records, best_by: str = "") -> list[Curve]:
    """Curves of the lm-eval figures measured during training: at most `MOST_TASKS`, the one in `best_by` first."""
    names = [name for record in records if record["kind"] == ASKED for name in record if "/" in name]
    names.sort(key=lambda name: f"{PREFIX}{name}" != best_by)
    return [
        Curve(f"task-{place}", f"{name}, by lm-eval", "", False, (Line("in training", ASKED, name, SECOND),))
        for place, name in enumerate([*dict.fromkeys(names)][:MOST_TASKS])
    ]


def with_planned_rates(records: Records) -> list[dict[str, Any]]:
    """A run's records, with planned learning rates between them, as records may be too sparse to show the warm-up."""
    last = max((record["step"] for record in records), default=0)
    planned = [
        {"kind": "train", "step": step, "learning_rate": rate}
        for record in records
        if record["kind"] == SCHEDULE
        for step, rate in record["rates"]
        if step <= last
    ]
    return sorted([*records, *planned], key=lambda record: record["step"])


def draw_curves(curves: Sequence[Curve], records: Records, total_steps: int) -> dict[str, str]:
    """An SVG element by title, for each curve with at least one point."""
    drawn = {}
    for curve in curves:
        points = {line: _points(records, line) for line in curve.lines}
        if any(points.values()):
            drawn[curve.title] = _draw(curve, points, total_steps)
    return drawn


def _points(records: Records, line: Line) -> list[tuple[int, float]]:
    """Steps and finite values of a line, thinned so that a long run's page stays small."""
    points = [(record["step"], record.get(line.field, math.nan)) for record in records if record["kind"] == line.kind]
    return thin([(step, float(value)) for step, value in points if math.isfinite(value)])


def thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Thin to at most `MAX_POINTS` points: both ends, and each interval's lowest and highest, so no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    width = -(-len(points) // (MAX_POINTS // 2 - 1))
    kept = {points[0], points[-1]}
    for start in range(0, len(points), width):
        part = points[start : start + width]
        kept |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(kept)


def _draw(curve: Curve, points: dict[Line, list[tuple[int, float]]], total_steps: int) -> str:
    """Draw with the object-oriented interface, without using or changing the matplotlib settings of process or user."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE, **{"svg.hashsalt": f"headrace-{curve.name}"})
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        for line, each in points.items():
            if each:
                look = {"marker": "o", "linewidth": 1.6} if len(each) <= MARKED_POINTS else {"linewidth": 0.9}
                axes.plot(
                    *zip(*each, strict=True),
                    color=line.colour,
                    linestyle=line.dashes,
                    label=line.label,
                    clip_on=False,
                    **look,
                )
        _set_axes(axes, curve, total_steps)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _for_page(stream.getvalue(), curve)


def _set_axes(axes: Any, curve: Curve, total_steps: int) -> None:
    axes.set_xlim(0, max(1, total_steps))  # 0 if only the untrained model was evaluated
    axes.set_xlabel("step")
    axes.set_ylabel(curve.unit)
    if curve.from_zero:
        axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=6)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if axes.get_ylim()[1] >= THOUSANDS:
        axes.yaxis.set_major_formatter("{x:,.0f}")
    if len(curve.lines) > 1:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=min(len(curve.lines), MOST_IN_A_ROW), borderaxespad=0
        )


def _for_page(svg: str, curve: Curve) -> str:
    """The SVG element without size and style, with the page's colours, and no identifiers that two curves share."""
    svg, title = svg[svg.index("<svg") :], html.escape(curve.title)
    replacements: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', lambda found: f'<svg viewBox="{found[1]}" role="img" '
         f'aria-label="{title}" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'),
        (r"<metadata>.*?</metadata>\s*", ""),
        (r'<g id="[^"]*">', "<g>"),
        (r"<style.*?</style>\s*", ""),
        (r"#(0[1-8])\1\1", lambda colour: COLOURS[colour[0]]),
    ]  # fmt: skip
    for pattern, replacement in replacements:
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    return svg.strip()

"""A comparison as one page that opens anywhere."""

from markupsafe import Markup

from trainer import __version__
from trainer.registry.compare_curves import draw_overlays
from trainer.registry.compare_runs import Comparison
from trainer.registry.report import open_template

PAGE = "compare.html.j2"


def render(comparison: Comparison) -> str:
    """The page, what came of the runs first; the same text for the same runs."""
    curves = {
        title if len(comparison.groups) == 1 else f"{title} ({group[0].entry.name})": Markup(svg)
        for group in comparison.groups
        for title, svg in draw_overlays(group).items()
    }
    return open_template(PAGE).render(
        names=[run.name for run in comparison.runs],
        verdict=comparison.verdict,
        sections=[comparison.named, comparison.results, comparison.curves, *comparison.differing],
        drawn={comparison.curves.title: curves},
        version=__version__,
    )

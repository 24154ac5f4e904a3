"""The pages generated from the code are up to date."""

from collections.abc import Iterator
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from docs.making import __main__ as making
from docs.making.commands import _meaning
from docs.making.errors import page as errors_page
from docs.making.settings import page as settings_page
from flows import FLOW_COMMANDS
from tests.docs.fields import fields_of
from tests.docs.pages import DOCS
from trainer.common import errors
from trainer.common.errors import PipelineError
from trainer.evaluation.metrics import METRICS


def kinds(kind: type[PipelineError] = PipelineError) -> Iterator[type[PipelineError]]:
    for other in kind.__subclasses__():
        yield other
        yield from kinds(other)


def test_the_reference_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert making.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(making.PAGES, "errors.md", lambda: iter(["# Errors", "", "something else"]))
    assert making.main(["--check"]) == 1
    assert "docs/reference/errors.md" in capsys.readouterr().err


def test_every_setting_has_its_line() -> None:
    text = "\n".join(settings_page()).replace(".N.", ".0.")
    missing = {path for command in FLOW_COMMANDS for path in fields_of(command) if f"| `{path}` |" not in text}
    assert not missing


def test_the_page_on_metrics_names_each() -> None:
    page = (DOCS / "how-to" / "metrics.md").read_text(encoding="utf-8")
    assert not [name for name in METRICS if f"`{name}`" not in page and not name.startswith("glue/")]


def test_a_parameter_without_help_is_refused() -> None:
    made = typer.Typer()

    @made.command()
    def command(
        helped: Annotated[str, typer.Argument(help="a word")], bare: Annotated[int, typer.Option()] = 1
    ) -> None:
        pass

    helped, bare = get_command(made).params[:2]
    assert _meaning(helped) == "a word"
    with pytest.raises(ValueError, match="BARE of a command has no help"):
        _meaning(bare)


def test_every_error_has_a_cause_and_a_remedy() -> None:
    told = "\n".join(errors_page())
    for kind in kinds():
        if kind.__module__ == errors.__name__:
            section = told.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
            assert section.strip() and "Remedy: " in section, kind.__name__

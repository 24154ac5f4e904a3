"""Write a run's report page, model card and lineage.

runs/X/report.html       one self-contained HTML file
runs/X/final/README.md   the model card, listed in the model's manifest
runs/X/tensorboard/…     the outcome for TensorBoard, byte-identical for the same run
runs/X/lineage.json      written last; holds the fingerprint of the report's inputs, and the digests of its files
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict

from trainer import __version__
from trainer.common.display import Pairs, Table, markdown_pairs, markdown_table, markdown_text
from trainer.common.errors import ArtifactError
from trainer.config.kinds import kind_of_run
from trainer.records.evaluations import Result, best_by
from trainer.records.fields import list_changes
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.content import Block, ReportContent, Section, environment_pairs, first_table, speed_pairs
from trainer.registry.curves import draw_curves, task_curves, with_planned_rates
from trainer.registry.facts import RunFacts, describe_files, make_lineage, read_facts
from trainer.registry.sections import describe_metadata
from trainer.store.manifest import FileRecord, write_manifest
from trainer.store.names import CARD, FINAL, LINEAGE, REPORT, TENSORBOARD
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def make_card(facts: RunFacts, content: ReportContent) -> str:
    """The model card as Markdown with YAML front matter; the same text for the same run."""
    sections = [
        ("Use", [f"```python\n{content.card.use}\n```"]),
        ("Training data", _show(content.data)),
        ("Results", [markdown_text(content.verdict), markdown_text(content.evaluated)]),
        *((section.title, _show(section)) for section in content.results),
        ("Model", [markdown_pairs("Model", content.model)]),
        ("Training settings", [markdown_pairs("Setting", _settings(facts))]),
        ("Versions", [markdown_pairs("Name", environment_pairs(facts))]),
    ]
    matter, missing = describe_metadata(facts, content)
    front = yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)
    text = [f"---\n{front}---", f"# {markdown_text(facts.name)}", _what_it_is(facts, content)]
    if missing:
        text.append(f"Missing above: {markdown_text('; '.join(missing))}.")
    for title, paragraphs in sections:
        text += [f"## {markdown_text(title)}", *paragraphs]
    return "\n\n".join(text) + "\n"


def _what_it_is(facts: RunFacts, content: ReportContent) -> str:
    return (
        f"{markdown_text(content.card.summary)} with headrace {facts.final.headrace}. The run's fingerprint is "
        f"`{facts.config['fingerprint']}`; `lineage.json` in the run's folder lists every artifact it was built from."
    )


def _show(section: Section) -> list[str]:
    return [paragraph for block in section.blocks for paragraph in _paragraphs(block)]


def _paragraphs(block: Block) -> list[str]:
    note = [markdown_text(block.note)] if block.note else []
    table = [markdown_table(block.table)] if block.table else []
    return [*note, *table, *([markdown_pairs("Name", block.pairs)] if block.pairs else [])]


def _settings(facts: RunFacts) -> Pairs:
    """The training settings as configured, without empty ones."""
    return [(name, str(value)) for name, value in facts.job["training"].items() if value is not None]


OUTCOME = "outcome.tfevents"
"""TensorBoard reads it after the files of the training processes, whose names begin with `events.`."""


def write_outcome(store: Store, facts: RunFacts, samples: Iterable[tuple[str, str]]) -> None:
    """Write a run's outcome and sample continuations for TensorBoard; replaces the file of an earlier report."""
    from trainer.training.tracking import event_file, scalar, session_end, session_start, text  # half a second to load

    made = datetime.fromisoformat(facts.final.created).timestamp()
    shown = [
        session_start(facts.job),
        *(scalar(f"final/{name}", value) for name, value in _figures(facts.evaluation)),
        *(
            text(f"samples/{number}", f"Prompt:\n\n{_block(prompt)}\n\nContinuation:\n\n{_block(continuation)}")
            for number, (prompt, continuation) in enumerate(samples, start=1)
        ),
        session_end(made),
    ]
    store.write_bytes(f"{facts.key}/{TENSORBOARD}/{OUTCOME}", event_file(shown, facts.steps, made))


def _figures(evaluation: Result | None) -> Iterator[tuple[str, float]]:
    """Yield a finished model's figures, such as `total/loss`, `corpora/code/loss` and `validation/accuracy`."""
    if evaluation is None:
        return
    by = "corpora/" if evaluation.by == "corpus" else ""
    groups = {f"{by}{name}": scores for name, scores in evaluation.groups.items()}
    if evaluation.total is not None:
        groups["total"] = evaluation.total
    for group, scores in groups.items():
        yield from ((f"{group}/{name}", value) for name, value in scores.figures.items())
    if evaluation.harness is not None:
        yield from evaluation.harness.figures().items()


def _block(text: str) -> str:
    """A text as a Markdown code block."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


FORMAT = 1
TEMPLATES, PAGE = Path(__file__).parent / "templates", "report.html.j2"


class Report(BaseModel):
    """The report's key, the fingerprint of its inputs, and its summary in Markdown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    fingerprint: str
    markdown: str
    reused: bool = False


def report_content(facts: RunFacts) -> ReportContent:
    """The parts of a run's report that its kind computes."""
    content: ReportContent = kind_of_run(facts.config).kind.report_content(facts, facts.plan)
    return content


def make_report(store: Store, run_key: str) -> Report:
    """Write a finished run's report, model card and lineage, or reuse them if they are up to date.

    `run_key` is the run's folder in the store: runs/NAME. Raises `RunError` if there is no finished run,
    `ArtifactError` if one of its inputs is missing or its model is damaged.
    """
    facts = read_facts(store, run_key)
    content = report_content(facts)
    name, page = _identify(facts), f"{run_key}/{REPORT}"
    reused = _is_intact(store, facts, name)
    if not reused:
        texts = {REPORT: render_page(facts, content), CARD: make_card(facts, content)}
        contents = {file: text.encode(errors="replace") for file, text in texts.items()}
        lineage = make_lineage(store, facts)
        store.write_bytes(page, contents[REPORT])
        publish_card(store, facts, contents[CARD])
        write_outcome(
            store, facts, [each for section in content.samples for block in section.blocks for each in block.samples]
        )
        made = [_record(file, data) for file, data in contents.items()]
        lineage["report"] = {"fingerprint": name, "files": describe_files(made)}
        write_sealed(store, f"{run_key}/{LINEAGE}", lineage)
    markdown = make_markdown(facts, content, store.path(page))
    return Report(key=page, fingerprint=name, markdown=markdown, reused=reused)


def find_fault(store: Store, facts: RunFacts) -> str | None:
    """Why `make_report` would write the run's report again; None if it is up to date."""
    name = _identify(facts)
    if _is_intact(store, facts, name):
        return None
    try:
        earlier = read_sealed(store, f"{facts.key}/{LINEAGE}")
    except ArtifactError as error:
        return str(error)
    if earlier is None or "report" not in earlier:
        return "there is none yet"
    if earlier["report"]["fingerprint"] == name:
        return "its page or model card is missing or changed"
    changes = list_changes(
        {key: value for key, value in earlier.items() if key != "report"}, make_lineage(store, facts)
    )
    return (
        "; ".join(changes) or "another version of headrace wrote it, or the run's records or checkpoints have changed"
    )


def publish_card(store: Store, facts: RunFacts, card: bytes) -> None:
    """Write the model card into the model's folder and its manifest.

    The folder matches its manifest at every instant: an older card is removed from the manifest before its file is
    replaced, and the new one is added after its file is written. A file that no manifest lists does no harm.
    """
    folder, record = f"{facts.key}/{FINAL}", _record(CARD, card)
    if facts.card is not None and facts.card != record:
        write_manifest(store, folder, facts.final)
    store.write_bytes(f"{folder}/{CARD}", card)
    files = sorted([*facts.final.files, record], key=lambda file: file.name)
    write_manifest(store, folder, facts.final.model_copy(update={"files": files}))


def render_page(facts: RunFacts, content: ReportContent) -> str:
    """The report as one HTML page; the same text for the same run."""
    of_tasks = task_curves(facts.records, best_by(facts.job))
    curves = draw_curves([*content.curves, *of_tasks], with_planned_rates(facts.records), facts.steps)
    return open_template(PAGE).render(
        name=facts.name,
        content=content,
        curves={title: Markup(svg) for title, svg in curves.items()},
        speed=speed_pairs(facts),
        environment=environment_pairs(facts),
        config=_pretty(facts.config),
        model_config=_pretty(facts.model_config),
        fingerprint=facts.config["fingerprint"],
        version=__version__,
    )


def open_template(name: str) -> Template:
    """A page's template; it escapes the values that it shows."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def make_markdown(facts: RunFacts, content: ReportContent, path: str) -> str:
    """The report's summary for an orchestrator's page: verdict, key figures, scores and data."""
    tiles = Table(["Figure", "Value", ""], [[tile.label, tile.figure, tile.note] for tile in content.tiles], words=3)
    scores, data = first_table(content.results), first_table([content.data])
    parts = [
        f"# {markdown_text(facts.name)}",
        markdown_text(content.verdict),
        markdown_text(content.evaluated),
        markdown_table(tiles),
        *([f"## Results\n\n{markdown_table(scores)}"] if scores else []),
        *([f"## Data\n\n{markdown_table(data)}"] if data else []),
        f"Full report: `{path}`",
    ]
    return "\n\n".join(parts) + "\n"


def _identify(facts: RunFacts) -> str:
    """The fingerprint of a run's report, templates and version included."""
    templates = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(TEMPLATES.iterdir())]
    return facts.fingerprint([FORMAT, __version__, templates])


def _is_intact(store: Store, facts: RunFacts, name: str) -> bool:
    """Whether a report of the same inputs exists, with intact files and the card in the manifest."""
    try:
        earlier = read_sealed(store, f"{facts.key}/{LINEAGE}")
    except ArtifactError as error:
        log.warning("%s: writing the report again", error)
        return False
    if earlier is None or earlier.get("report", {}).get("fingerprint") != name:
        return False
    records = [FileRecord(**record) for record in earlier["report"]["files"]]
    for record in records:
        data = store.find_bytes(f"{facts.key}/{FINAL}/{CARD}" if record.name == CARD else f"{facts.key}/{record.name}")
        if data is None or _record(record.name, data) != record:
            return False
    return facts.card in records


def _record(name: str, data: bytes) -> FileRecord:
    return FileRecord(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)

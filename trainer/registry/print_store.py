"""Output of `headrace gc`, `headrace pin`, `headrace leftovers` and `headrace lineage`."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from trainer.common.display import count, plural, score, show, show_json, size
from trainer.common.errors import ConfigError
from trainer.config.files import validate_job
from trainer.config.jobs import GarbageJob
from trainer.curation.descriptions import decision_rows, describe_decisions
from trainer.records.fields import printable
from trainer.registry.facts import SINGLE
from trainer.registry.garbage import collect
from trainer.registry.leftovers import LEFTOVERS, OLD, Leftover, find_leftovers, print_items, remove_leftover
from trainer.registry.lineage import Finding, check, find_run, trace
from trainer.registry.references import pin, pinned, unpin
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def print_garbage(
    url: str, older_than: float | None, runs_older_than: float | None, remove: bool, as_json: bool = False
) -> None:
    """Print unreferenced folders older than these ages in days, removing them if asked, and the pins."""
    ages = {"older_than_days": older_than, "runs_older_than_days": runs_older_than}
    values = {"store": url, "remove": remove, **{name: age for name, age in ages.items() if age is not None}}
    store = Store(url)
    store.require_there()
    found = collect(validate_job(GarbageJob, values, "of the command line"))
    pins = sorted(pinned(store))  # read first: after an error the store may be unreachable
    print_items(found, remove, as_json=as_json, pinned=pins)
    if not as_json:
        _print_pins(store)


def change_pin(url: str, key: str | None, removed: bool, as_json: bool = False) -> None:
    """Add or remove a pin, if a key is given, then print all pins."""
    store = Store(url)
    store.require_there()
    if key is not None:
        changed = unpin(store, key) if removed else pin(store, key)
        if not as_json:
            show(f"{changed} is {'no longer pinned' if removed else 'pinned'}\n")
    if as_json:
        show_json({"pinned": sorted(pinned(store))})
    else:
        _print_pins(store, f"{store.url} has no pins\n")


def _print_pins(store: Store, otherwise: str = "") -> None:
    """Print the pins, or `otherwise` if there are none."""
    names = sorted(pinned(store))
    show(f"pinned: {', '.join(names)}\n" if names else otherwise)


LONGEST = 24 * 36500.0
"""Hours; the largest age that `headrace gc` accepts."""


def print_leftovers(
    url: str, older_than: float = OLD / timedelta(hours=1), remove: bool = False, as_json: bool = False
) -> None:
    """Print the leftovers older than some hours, and remove them if asked."""
    if not 0 <= older_than <= LONGEST:  # written so that NaN is refused too
        raise ConfigError(f"--older-than: expected a number of hours from 0 to {LONGEST:g}, found {older_than}")
    store = Store(url)
    found = find_leftovers(store, timedelta(hours=older_than))
    if not found:  # a store may hold nothing but unfinished uploads
        store.require_there()
    print_items((left for left in found if not remove or _is_removed(store, left)), remove, LEFTOVERS, as_json=as_json)


def _is_removed(store: Store, left: Leftover) -> bool:
    removed = remove_leftover(store, left)
    if not removed:
        log.warning("%s is in use again: kept", store.path(left.key))
    return removed


EXIT_CHANGED = 1
NAMED = 3
"""How many raw files of a corpus are listed by default."""


def describe_lineage(traced: dict[str, Any], every_file: bool) -> Iterator[str]:
    """Yield the lines about a traced model, its ancestors first."""
    for ancestor in traced.get("ancestors", []):
        yield from describe_lineage(ancestor, every_file)
        yield ""
    yield traced["run"]
    if "untold" in traced:
        yield _line("", f"lineage unknown: {traced['untold']}")
        return
    record = traced["lineage"]
    for corpus, files in traced["raw_files"].items():
        yield from _describe_files(corpus, files, every_file)
    yield from (_artifact(title, record[name]) for name, title in SINGLE.items() if name in record)
    for shards in record.get("shards", []):
        yield _artifact(f"shards of {shards['corpus']}", shards)
    for decisions in record.get("decisions", []):
        yield from _describe_decided(decisions, every_file)
    if base := traced["base"]:
        yield _line(
            "base model", f"{base['key'] or base['name']} ({base['origin']}), {plural(len(base['files']), 'file')}"
        )
        yield from (_line("", f"sha256 {sha256}  {name}") for name, sha256 in base["files"].items())
    if fork := traced["fork"]:
        yield _line("fork of", f"{fork['run']}/{fork['checkpoint']}")
    yield _line("training", _training_line(traced["training"]))
    yield _line("", f"config.json sha256 {record['run']['config_sha256']}, fingerprint {record['run']['fingerprint']}")
    yield from _describe_versions(record["environment"])
    model = record["model"]
    yield _line("final model", f"{model['key']}, fingerprint {model['fingerprint']}, made {model['created']}")
    yield from (_line("", f"sha256 {file['sha256']}  {file['name']}") for file in model["files"])
    yield from _describe_outcome(traced)


def print_lineage(url: str, model: str, *, every_file: bool, checked: bool, as_json: bool) -> int:
    """Print a model's lineage, if `checked` with a check of its inputs; returns the exit code, 1 if any has changed."""
    store = Store(url)
    traced = trace(store, find_run(store, model))
    findings = check(store, traced) if checked else []
    if as_json:
        show_json({**traced, **({"check": findings} if checked else {})})
    else:
        show(
            "\n".join([*describe_lineage(traced, every_file), *(["", *finding_lines(findings)] if checked else []), ""])
        )
    return EXIT_CHANGED if any(_is_wrong(finding) for finding in findings) else 0


def finding_lines(findings: list[Finding]) -> Iterator[str]:
    """Yield the number of findings by state, and each that changed or is missing."""
    for kind in ("artifact", "raw file"):
        states = [finding.state for finding in findings if finding.kind == kind]
        counts = ", ".join(f"{count(states.count(state))} {state}" for state in ("same", "changed", "gone", "not here"))
        yield _line(f"{kind}s", counts)
    for finding in findings:
        if finding.state in ("changed", "gone"):
            yield _line(finding.state, f"{finding.name}{': ' if finding.note else ''}{finding.note}")


def _is_wrong(finding: Finding) -> bool:
    """Whether a finding is an error: raw files may be missing, published artifacts may not."""
    return finding.state == "changed" or (finding.kind, finding.state) == ("artifact", "gone")


def _describe_files(corpus: str, files: list[dict[str, Any]] | None, every_file: bool) -> Iterator[str]:
    if files is None:
        yield _line(f"raw {corpus}", "the list of its files is missing")
        return
    known = [file["bytes"] for file in files if "bytes" in file]
    amount = f", {size(sum(known))}" if known and len(known) == len(files) else ""
    shown = files if every_file else files[:NAMED]
    yield _line(f"raw {corpus}", f"{plural(len(files), 'file')}{amount}")
    for file in shown:
        name, pieces = file.get("path") or file["name"], file.get("pieces", [])
        if pieces:
            yield _line("", f"{name}, with digests of {plural(len(pieces), 'piece')}")
        else:
            yield _line("", f"sha256 {file['sha256']}  {name}")
        for piece in pieces if every_file else []:
            yield _line("", f"  sha256 {piece['sha256']}  bytes {piece['start']} to {piece['end']}")
    if len(files) > len(shown):
        yield _line("", f"and {count(len(files) - len(shown))} more")


def _describe_decided(decisions: dict[str, Any], every_file: bool) -> Iterator[str]:
    """Yield the curation decisions by corpus and reason, and the evaluation sets that were kept out."""
    yield _artifact("decisions", decisions)
    yield _line("", describe_decisions(decisions))
    for row in decision_rows(decisions):
        amount = f"{plural(row['documents'], 'document')} ({row['share']}), {size(row['bytes'])}"
        yield _line("", f"{row['corpus']}: {row['reason']}: {amount}")
    if kept_out := decisions["kept_out"]:
        files = kept_out["files"]
        yield _line("", f"no {kept_out['ngram']}-gram of words of {plural(len(files), 'evaluation file')}:")
        shown = files if every_file else files[:NAMED]
        yield from (_line("", f"sha256 {file['sha256']}  {file['path']} ({file['field']})") for file in shown)
        if len(files) > len(shown):
            yield _line("", f"and {count(len(files) - len(shown))} more")


def _artifact(title: str, artifact: dict[str, Any]) -> str:
    made = f"made {artifact['created']} by headrace {artifact['headrace']}"
    return _line(title, f"{artifact['key']}, {made}, manifest sha256 {artifact['manifest_sha256']}")


def _training_line(training: dict[str, Any]) -> str:
    parts = [f"{count(training['steps'])} of {plural(training['planned_steps'] or 0, 'step')}"]
    if training["attempts"] is not None:
        parts.append(f"{plural(training['attempts'], 'batch', 'batches')} taken")
    parts.append(f"continued {plural(training['continuations'], 'time')}")
    parts.append(f"rolled back {plural(training['rollbacks'], 'time')}")
    return ", ".join([*parts, plural(training["checkpoints"], "checkpoint")])


def _describe_versions(environment: dict[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    rest = ", ".join(f"{name} {value}" for name, value in environment.items() if name != "packages")
    yield _line("versions", packages)
    yield _line("machine", rest)


def _describe_outcome(traced: dict[str, Any]) -> Iterator[str]:
    evaluation = traced["lineage"]["evaluation"]
    scores = ", ".join(f"{name} {score(value)}" for name, value in (traced["scores"] or {}).items())
    scores = scores or "replaced or removed since, so its figures are not known"
    outcome = f"{evaluation['key']}, fingerprint {evaluation['fingerprint']}: {scores}" if evaluation else "none"
    yield _line("evaluation", outcome)
    for name, moves in traced["promotions"].items():
        yield from (_line(f"models/{name}", f"{move['action']} at {move['time']}: {move['reason']}") for move in moves)


def _line(title: str, text: str) -> str:
    return f"  {title:<15} {printable(text)}"

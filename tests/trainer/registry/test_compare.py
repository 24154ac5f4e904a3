"""Runs side by side and the list of runs, of small real runs of both kinds."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.headrace import headrace
from tests.support import SMALL_MODEL, cpu_runtime, records, seal_copy, sealed_lines, small_job, write_corpora
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode, prepare
from tests.trainer.report_runs import HOSTILE, Page
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.kind import identify_run
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.records.basis import find_changes
from trainer.records.evaluations import Result
from trainer.records.lease import Lease
from trainer.records.plans import PreparedData
from trainer.records.sealed import require_sealed, seal_line, write_sealed
from trainer.registry.compare_figures import _line_of
from trainer.registry.compare_runs import compare
from trainer.registry.curves import Line
from trainer.registry.listing import _last_recorded, find_runs, list_runs
from trainer.registry.promotion import promote
from trainer.store.names import METRICS_FILE
from trainer.store.storage import Store
from trainer.training.identity import claim_run
from trainer.training.metrics_reader import read_records

CHANGES = {
    "training__learning_rate": 3e-3, "training__max_steps": 4, "training__evaluate_every": 2, "training__log_every": 2,
    "model__config": {**SMALL_MODEL, "n_layer": 1}, "evaluation__prompts": [HOSTILE],
    "data__workers": 2,
}  # fmt: skip
"""Settings of the run named other, which leave its data what it was."""


def pretrain(job: PipelineJob) -> None:
    cpu_runtime()
    run = train(job, silent(), prepare(job.preparation(), silent()))
    evaluate_checkpoint(evaluation_of(job, run.key), silent())


@pytest.fixture(scope="module")
def store(
    raw: Path, prepared: tuple[Path, PreparedData], pairs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """A store with runs named base, twin (the same again), other, grown (with other raw files), tuned and retuned."""
    folder = tmp_path_factory.mktemp("compare")
    url = shutil.copytree(prepared[0], folder / "store")
    pretrain(small_job(raw, url, run="base"))
    pretrain(small_job(raw, url, run="twin"))
    pretrain(small_job(raw, url, run="other", **CHANGES))
    changed = write_corpora(folder / "changed")
    first, second = sorted((changed / "code").iterdir())[:2]
    first.unlink()
    second.write_bytes(second.read_bytes() + b"\n# longer\n")
    (changed / "code" / "new.py").write_bytes(b"def new():\n    return 1\n" * 40)
    grown = small_job(changed, url, run="grown")
    prepare(grown.preparation(), silent())
    pretrain(grown)
    for name, rate in (("tuned", 1e-3), ("retuned", 1e-4)):
        job = finetune_job(
            pairs,
            url,
            "runs/base",
            run=name,
            training__max_steps=3,
            training__epochs=None,
            training__learning_rate=rate,
        )
        cpu_runtime()
        evaluate_run(job, train(job, silent(), encode(job, silent())).key, silent())
    return Store(str(url))


@pytest.fixture
def own(store: Store, tmp_path: Path) -> Store:
    """A copy of that store, to be changed."""
    return Store(str(shutil.copytree(str(store.local), tmp_path / "own")))


def stop(store: Store, run: str) -> None:
    """Leave of a run what a kill before its end leaves."""
    folder = Path(str(store.local), "runs", run)
    shutil.rmtree(folder / "final")
    (folder / "eval.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    early = [line for line in lines if json.loads(line)["step"] <= 3]
    (folder / "metrics.jsonl").write_bytes(b"".join(early) + b'{"kind": "train", "st')


def section(text: str, title: str) -> str:
    """The part of a comparison under a title."""
    found = re.search(rf"^{title}\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    assert found, text
    return found[1]


def cells(text: str, *begin: str) -> list[str]:
    """The cells after those that a row begins with."""
    found = re.search(rf"^ +{'  +'.join(map(re.escape, begin))}  +(.*)$", text, re.MULTILINE)
    assert found, text
    return re.split(r"  +", found[1])


def leaves(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {each["name"]: {k: v for k, v in each.items() if k != "name"} for each in value}
    if not isinstance(value, dict):
        return {path[1:]: repr(value)}
    return {place: leaf for key, each in value.items() for place, leaf in leaves(each, f"{path}.{key}").items()}


def job_of(store: Store, run: str) -> dict[str, Any]:
    return {key: value for key, value in store.read_json(f"runs/{run}/config.json")["job"].items() if key != "run"}


@pytest.mark.parametrize(
    ("first", "second"), [("base", "other"), ("base", "grown"), ("other", "grown"), ("tuned", "retuned")]
)
def test_the_fields_that_differ_and_no_others_are_shown(store: Store, first: str, second: str) -> None:
    one, two = (leaves(job_of(store, run)) for run in (first, second))
    expected = {path for path in one | two if one.get(path) != two.get(path)}
    found = section(compare(store, [first, second]), "Configuration")
    assert expected
    assert re.findall(r"^  (\S+\.\S+)  ", found, re.MULTILINE) == sorted(expected)


def test_values_stand_in_the_column_of_their_run(store: Store) -> None:
    found = section(compare(store, ["base", "other", "grown"]), "Configuration")
    assert cells(found, "training.learning_rate") == ["0.001", "0.003", "0.001"]
    assert cells(found, "training.max_steps") == ["6", "4", "6"]


def test_runs_that_are_the_same_are_said_to_be(store: Store) -> None:
    text = compare(store, ["base", "twin"])
    assert "A, B are identical in configuration, data, tokenizer, model and environment." in text
    assert text.count("Nothing differs.") == 5
    assert "A, B differ in configuration and model." in compare(store, ["base", "other"])


def test_changed_source_files_are_counted_and_named(store: Store) -> None:
    found = section(compare(store, ["base", "grown"]), "Data")
    raw = [Path(job_of(store, run)["data"]["corpora"][0]["paths"][0]).parent for run in ("base", "grown")]
    before, after = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in raw)
    (removed,), (added,) = before.keys() - after.keys(), after.keys() - before.keys()
    (changed,) = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    same = len(before.keys() & after.keys()) - 1
    assert (
        f"code, B against A: 1 added ({added}); 1 removed ({removed}); 1 changed ({changed}); {same} the same" in found
    )
    assert "Identical, so not shown: docs." in found
    keys = [store.read_json(f"runs/{run}/config.json")["data"]["shards"][0]["key"] for run in ("base", "grown")]
    tokens = [store.read_json(f"{key}/manifest.json")["details"]["totals"]["tokens"] for key in keys]
    assert cells(found, "code    tokens") == [f"{each:,}" for each in tokens]


def test_each_of_24_runs_has_a_line_of_its_own_look() -> None:
    line = Line("loss", "loss", "loss", "")
    looks = [_line_of(SimpleNamespace(letter=letter), line) for letter in "ABCDEFGHIJKLMNOPQRSTUVWX"]
    assert len({(look.colour, look.dashes) for look in looks}) == 24


@pytest.mark.parametrize("corpora", [1, 500])
def test_a_run_is_listed_at_the_step_of_its_last_record_however_long_that_is(empty_store: Store, corpora: int) -> None:
    place = f"runs/long/{METRICS_FILE}"
    losses = {f"corpus-{number}": 4.0 for number in range(corpora)}
    records = [{"kind": "train", "step": 7}, {"kind": "evaluation", "step": 8, "corpora": losses}]
    lines = [seal_line(place, number, record) for number, record in enumerate(records, 1)]
    empty_store.write_bytes(place, b"".join(lines))
    assert _last_recorded(empty_store, "runs/long") == 8
    empty_store.write_bytes(place, b"".join(lines)[:-9])
    assert _last_recorded(empty_store, "runs/long") == 7, "the last line was cut short"


def test_files_that_another_rule_cut_are_not_taken_for_changed() -> None:
    whole, halves = [(0, 10, "a")], [(0, 5, "b"), (5, 10, "c")]
    assert find_changes({"x": whole}, {"x": halves}, recut=True).recut == ["x"]
    assert find_changes({"x": whole}, {"x": halves}, recut=False).changed == ["x"]
    assert find_changes({"x": [(0, 4, "d"), (4, 10, "e")]}, {"x": halves}, recut=True).recut == ["x"]
    assert find_changes({"x": whole}, {"x": [(0, 10, "b")]}, recut=True).changed == ["x"]
    assert find_changes({"x": [(0, 9, "a")]}, {"x": halves}, recut=True).changed == ["x"], "its size is another"


def test_the_best_of_what_was_measured_alike_is_marked(store: Store) -> None:
    losses = [store.read_json(f"runs/{run}/eval.json")["total"]["figures"]["loss"] for run in ("base", "other")]
    found = section(compare(store, ["base", "other"]), "Results")
    shown = [f"{loss:.4f} *" if loss == min(losses) else f"{loss:.4f}" for loss in losses]
    assert cells(found, "loss, all corpora") == shown and losses[0] != losses[1]
    other = section(compare(store, ["base", "grown"]), "Results")
    apart = "Measured on different data or in different ways, so none is marked best: "
    names = [
        f"{figure}, {group}" for group in ("all corpora", "code") for figure in ("loss", "perplexity", "bits_per_byte")
    ]
    assert f"{apart}{'; '.join(names)}." in other
    assert "*" not in re.search(r"loss, all corpora  .*", other)[0] and "*" in re.search(r"loss, docs  .*", other)[0]


def test_an_unfinished_run_is_compared_as_far_as_it_is(own: Store) -> None:
    stop(own, "base")
    text = compare(own, ["base", "twin"])
    assert cells(text, "A  base") == ["pretraining", "stopped"]
    assert cells(text, "steps") == ["3 of 6", "6 of 6"]
    assert "A: not evaluated." in text
    assert "parameters" not in text, "they are those of its last checkpoint, and the same"
    twin = [
        r["loss"]
        for r in map(json.loads, own.read_bytes("runs/twin/metrics.jsonl").splitlines())
        if r["kind"] == "train"
    ]
    assert cells(text, "training loss, step 3") == [f"{twin[2]:.4f}"] * 2
    assert "training loss, step 6" not in text and "*" not in section(text, "Results")


def test_training_losses_of_runs_that_record_at_other_steps_are_means_over_the_same_steps(
    raw: Path, own: Store
) -> None:
    pretrain(small_job(raw, own.url, run="sparse", training__log_every=3))
    text = compare(own, ["base", "sparse"])
    for step in (3, 6):
        (sparse,) = (each["loss"] for each in records(Path(own.url), "train", "runs/sparse") if each["step"] == step)
        assert cells(text, f"training loss, step {step}") == [f"{sparse:.4f}"] * 2, "the steps computed the same"


def test_the_best_loss_is_among_those_of_the_text_that_the_last_evaluation_read(own: Store) -> None:
    key, found = f"runs/twin/{METRICS_FILE}", read_records(own, "runs/twin")
    other = next(each for each in found if each["kind"] == "evaluation")
    found.insert(found.index(other) + 1, {**other, "step": 3, "loss": 0.5, "tokens": other["tokens"] + 1})
    own.write_bytes(key, sealed_lines(key, found))
    one, two = cells(compare(own, ["base", "twin"]), "validation loss, best")
    assert one == two


def test_a_run_that_has_not_begun_and_data_that_is_gone_are_told(raw: Path, own: Store, data: PreparedData) -> None:
    job = small_job(raw, own.url, run="new")
    claim_run(own, identify_run(job, data), job, data)
    text = compare(own, ["new", "grown"])
    assert cells(text, "A  new") == ["pretraining", "stopped"]
    assert "A: no model has been saved yet." in text and "A: not started yet." in text
    key = own.read_json("runs/grown/config.json")["data"]["shards"][0]["key"]
    own.delete(key)
    assert f"only names are compared: {key}." in compare(own, ["base", "grown"])
    own.delete(own.read_json("runs/twin/config.json")["data"]["tokenizer"]["key"])
    assert compare(own, ["base", "twin"]).endswith("A, B do not differ as far as they could be compared.\n")


def test_runs_of_both_kinds_say_what_is_not_compared(store: Store) -> None:
    text = compare(store, ["base", "tuned", "retuned"])
    fields = section(text, "Configuration")
    assert cells(fields, "training.learning_rate") == ["0.001", "0.001", "0.0001"]
    assert "training.context" not in fields and "data.text_columns" not in fields
    assert "Not compared: the corpora of A (pretraining) with the labelled sets of B, C (fine-tuning)." in text
    assert text.endswith("A, B, C differ in kind, configuration, tokenizer and model.\n")
    assert "Not compared: losses in nats a token (A) with losses in nats an example (B, C)." in text


@pytest.mark.parametrize(
    ("setting", "value"),
    [("class_weights", "balanced"), ("label_smoothing", 0.1), ("loss", "simpo"), ("beta", 0.2), ("gamma", 0.5)],
)
def test_training_losses_that_measure_different_things_are_said_to(own: Store, setting: str, value: object) -> None:
    said = f"The training losses of A, B measure different things: they differ in training.{setting}."
    assert said not in compare(own, ["tuned", "retuned"])
    key = "runs/retuned/config.json"
    config = require_sealed(own, key)
    config["job"]["training"][setting] = value
    write_sealed(own, key, config)
    assert said in section(compare(own, ["tuned", "retuned"]), "Curves")
    assert "measure different things" not in compare(own, ["base", "retuned"])


def test_the_page_shows_the_same_escaped_and_fetches_nothing(own: Store, tmp_path: Path) -> None:
    hostile = "<b onclick=x>run&"
    shutil.copytree(own.path("runs/other"), own.path(f"runs/{hostile}"))
    seal_copy(own, "runs/other", own, f"runs/{hostile}")
    page = tmp_path / "page.html"
    text = compare(own, ["base", hostile, "tuned"], page)
    assert "\x1b" not in text and HOSTILE not in text
    source = page.read_text(encoding="utf-8")
    assert "<script" not in source and "<b onclick" not in source and "&lt;b onclick=x&gt;run&amp;" in source
    parsed = Page(source)
    assert not parsed.elements & {"script", "link", "iframe", "img", "object", "embed", "base"}
    assert all(link.startswith("#") for link in parsed.links) and len(parsed.ids) == len(set(parsed.ids))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", source))
    assert Balanced(source).open == []
    headings = re.findall(r"<h2>(.*?)</h2>", source)
    assert headings == ["Runs", "Results", "Curves", "Configuration", "Data", "Tokenizer", "Model", "Environment"]
    titles = re.findall(r"<h3>(.*?)</h3>", source)
    assert "Loss, validation (pretraining)" in titles and "Validation f1 (fine-tuning)" in titles
    assert re.findall(r'role="img" aria-label="(.*?)"', source) == [title.split(" (")[0] for title in titles]
    assert "var(--first)" in source and "var(--second)" in source and "#0404" not in source
    for path in re.findall(r"^  (\S+\.\S+)  ", section(text, "Configuration"), re.MULTILINE):
        assert f'<th scope="row" class="word">{path}</th>' in source


class Balanced(HTMLParser):
    """Elements that were opened and not closed, void ones apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_an_unknown_run_is_refused_with_the_closest_names(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace("compare", store.url, "base", "retunde") == 2
    said = capsys.readouterr().err
    assert f"there is no run 'retunde' in {store.path('runs')}; did you mean 'retuned' or 'tuned'?" in said
    assert f"(`headrace list {store.url}` shows all)" in said
    assert headrace("compare", str(tmp_path), "a", "b") == 2
    assert "has no runs: check" in capsys.readouterr().err
    assert headrace("compare", f"{store.url}/nothing", "a", "b") == 2
    assert "there is no store at" in capsys.readouterr().err
    assert headrace("compare", store.url, "base") == 2


def test_runs_are_named_by_their_beginning_or_by_the_job_that_made_them(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace("compare", store.url, "base", "retuned") == 0
    whole = capsys.readouterr().out
    assert headrace("compare", store.url, "bas", "runs/ret") == 0
    assert capsys.readouterr().out == whole


def test_the_list_tells_each_run_newest_first(own: Store) -> None:
    promote(own, "lm", "runs/other", {"loss": 1.0}, "test")
    stop(own, "base")
    own.write_bytes("runs/broken/config.json", b"{")
    own.write_bytes("runs/empty/notes.txt", b"")
    names = own.names("runs/grown/tensorboard")
    own.rename(f"runs/grown/tensorboard/{names[0]}", "runs/grown/tensorboard/events.out.tfevents.9000000000.later.1.0")
    lines = {line.name: line for line in find_runs(own)}
    assert set(lines) == {"base", "twin", "other", "grown", "tuned", "retuned", "broken"}
    assert next(iter(lines)) == "grown" and lines["broken"].state == "unreadable"
    assert (lines["base"].state, lines["base"].steps, lines["base"].final) == ("stopped", 6, None)
    assert lines["other"].champion_of == ("lm",) and not lines["twin"].champion_of
    for run in ("twin", "tuned"):
        result = Result(**require_sealed(own, f"runs/{run}/eval.json"))
        assert lines[run].final == result.judged.figures["loss"]
        assert lines[run].best == own.read_json(f"runs/{run}/checkpoint-best")["scores"]["loss"]
    with Lease(own, "runs/base"):
        assert {line.name for line in find_runs(own) if line.state == "running"} == {"base"}


@pytest.mark.deep
def test_the_list_of_a_remote_store_is_the_same(store: Store, remote_store: Store) -> None:
    for path in Path(str(store.local)).rglob("*.json*"):
        remote_store.write_bytes(path.relative_to(str(store.local)).as_posix(), path.read_bytes())
    for run in store.names("runs"):
        (events,) = (name for name in store.names(f"runs/{run}/tensorboard") if name.startswith("events."))
        for name in (f"tensorboard/{events}", "checkpoint-last", "checkpoint-best"):
            remote_store.write_bytes(f"runs/{run}/{name}", store.read_bytes(f"runs/{run}/{name}"))
    assert find_runs(remote_store) == find_runs(store)
    assert list_runs(remote_store).replace(remote_store.url, store.url) == list_runs(store)


def test_the_list_imports_no_heavy_library_and_minds_no_closed_pipe(store: Store) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "flows.command", "list", store.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0 and "Error" not in said
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in said.splitlines()}
    assert "trainer" in imported and not imported & {"torch", "transformers", "numpy", "pyarrow", "matplotlib"}

"""The command `headrace`: fast help, exit statuses, JSON, starters and schemas."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.main import get_command

from flows.command import FLOW_COMMANDS, main
from flows.commands import app, jobs
from flows.commands.options import CHANGED
from flows.commands.starters import RUN_BY, TEMPLATES, Starter
from flows.dry_runs import DRY_RUNS
from flows.schemas import TITLE, as_text, file_name, schema_for, schema_of, schemas
from tests import ROOT
from tests.depth import once
from tests.flows.conftest import SETTINGS, Done
from tests.headrace import headrace
from tests.one_process import run_each
from tests.processes import Ended, free_port, start_module
from tests.stops import heeds
from tests.support import only_run, small_values, write_config
from tests.trainer.chats import chat_model, chat_values
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.results import a_result
from trainer.common.display import show_json
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED
from trainer.config.files import explain, load_job, parse_yaml, read_values
from trainer.config.kinds import load
from trainer.data.chat.encoder import load_chat_encoder
from trainer.data.chat.rendering import Message
from trainer.data.step_plan import make_tuning_plan
from trainer.registry.listing import RunLine

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]

HEAVY = ("prefect", "torch", "transformers", "datasets", "pandas", "httpx", "rich")


def run_all(*commands: list[Any], **env: str) -> tuple[list[int], set[str], str, str]:
    """The statuses of some commands in a process without a server, what they loaded, and what they printed."""
    ended, loaded = run_each(commands, **env)
    statuses, printed, said = zip(*ended, strict=True)
    return list(statuses), loaded, "".join(printed), "".join(said)


def status_of(*words: Any) -> int:
    """The exit status of a command that can run in the tests' process."""
    assert words[0] not in FLOW_COMMANDS
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert isinstance(end.value.code, int)
    return end.value.code


def json_of(capsys: pytest.CaptureFixture[str], *words: Any) -> Any:
    """What a command prints for programs."""
    capsys.readouterr()
    assert status_of(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_usage_shows_what_may_be_left_out_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("schema", "--help") == 0
    assert "[COMMAND]" in (usage := capsys.readouterr().out) and "[[COMMAND]]" not in usage


def test_help_fits_one_screen_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert 24 <= len(lines) <= 40 and max(map(len, lines)) <= 80
    named = [line.split()[0] for line in lines if re.match(r"  [a-z]+  +[A-Z]", line)]
    assert sorted(named) == COMMANDS
    assert not [line for line in lines[1:] if line.endswith("...")], "every summary is whole"


def test_the_help_of_every_command_loads_no_heavy_library() -> None:
    statuses, loaded, _, said = run_all(*([command, "--help"] for command in COMMANDS))
    assert statuses == [0] * len(COMMANDS), said
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("command", [*FLOW_COMMANDS, "explain"])
def test_help_shows_the_settings_that_people_change_on_one_screen_and_all_on_demand(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace(command, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 120
    first, *_ = schemas_read = list(schema_of(command).values())
    few = CHANGED.get(first.__name__, ())
    settings = [line.split()[0] for line in lines if re.match(r"(  )?[a-z_.N0-9]+:?  \S+.*[,)]", line)]
    assert len(few) in (0, 10) and (not few or [name.strip(":") for name in settings[-10:]] == list(few))
    for words in ([command, "--all"], [command, "--help", "--all"]):
        assert headrace(*words) == 0
        printed = capsys.readouterr().out
        assert all(explain(schema) in printed for schema in schemas_read)


def test_a_refused_configuration_loads_no_heavy_library(config: Path) -> None:
    commands = [
        ["run", config, "training.lerning_rate=1"],
        ["train", config, "training.max_steps"],
        ["prepare", config, "data.tokenizer.vocab_size=yes"],
        ["run", config.with_name("none.yaml")],
        ["finetune", config],
        ["explain", config, "training.max_steps=many"],
    ]
    statuses, loaded, _, said = run_all(*commands)
    assert statuses == [EXIT_BAD_INPUT] * len(commands)
    assert not loaded & set(HEAVY)
    assert said.count("ConfigError: ") == len(commands) and "Traceback" not in said


def test_a_job_without_a_file_is_refused_in_one_message_if_a_setting_is_missing() -> None:
    commands = [["promote", "store=s", "name=words"], ["rollback", "store=s", "name=words", "ran=x"], ["run", "name=x"]]
    statuses, loaded, _, said = run_all(*commands, ["evaluate", "store=s"], ["explain", "name=x"], ["promote"])
    assert statuses == [EXIT_BAD_INPUT] * 6
    assert not loaded & set(HEAVY)
    where = "ConfigError: configuration on the command line: "
    assert f"{where}run: " in said and said.count(where) == 5 and "Traceback" not in said
    assert "Missing argument 'CONFIG'" in said


def test_a_dry_run_on_local_files_loads_no_prefect_and_gives_json(config: Path, tmp_path: Path) -> None:
    statuses, loaded, printed, said = run_all(["prepare", config, "--dry-run"])
    assert statuses == [0], said
    assert not loaded & {"prefect", "torch", "transformers"}
    assert re.search(r"code: \d+ files, [\d.]+ KiB\n", printed)
    statuses, loaded, printed, said = run_all(["run", config, "--dry-run", "--json"])
    assert statuses == [0], said
    assert "prefect" not in loaded
    found = json.loads(printed)
    assert (found["about_steps"], found["plan"]) == (SETTINGS["training__max_steps"], None)


@pytest.mark.deep
def test_a_dry_run_of_training_alone_is_refused_without_prepared_data(config: Path) -> None:
    (unprepared, wrong), _ = run_each(
        [["train", config, "--dry-run"], ["train", config, "data.corpora.0.paths=[none.py]", "--dry-run"]]
    )
    assert unprepared.status == wrong.status == EXIT_BAD_INPUT
    assert "holds no shards of these corpora's current files; run prepare-data first" in unprepared.stderr
    assert "none.py" in wrong.stderr, "what is wrong with the job comes first"


def test_a_dry_run_tells_that_files_are_missing_before_it_loads_torch(config: Path, tmp_path: Path) -> None:
    labelled = write_config(tmp_path / "labelled.yaml", finetune_values(tmp_path, tmp_path / "store", "any/model"))
    chats = write_config(tmp_path / "chat.yaml", chat_values(tmp_path, tmp_path / "store", "any/model"))
    statuses, loaded, _, said = run_all(
        ["run", config, "--dry-run", "data.corpora.0.paths=[nowhere/*.txt]"],
        *(["finetune", job, "--dry-run"] for job in (labelled, chats)),
        ["finetune", labelled, "--dry-run", "store=/proc/nowhere"],
    )
    assert statuses[:3] == [EXIT_BAD_INPUT] * 3 and not loaded & set(HEAVY)
    assert "StorageError: cannot write /proc/nowhere" in said and "Traceback" not in said
    assert "CorpusError: corpus 'code': no file matches 'nowhere/*.txt'" in said and said.count("no file") == 3


@pytest.mark.parametrize(
    ("which", "expected"),
    once(
        ("run", rf"steps +about {SETTINGS['training__max_steps']} on 1 rank"),
        ("prepare", r"code: \d+ files, [\d.]+ KiB\n"),
    ),
)
def test_a_dry_run_of_a_job_with_curation_decides_nothing(
    raw: Path, tmp_path: Path, command: Callable[..., Ended], which: str, expected: str
) -> None:
    (tmp_path / "kept-out.txt").write_text("what is measured on must not be trained on\n")
    curation = {"near": {}, "decontaminate": {"files": [{"paths": [str(tmp_path / "kept-out.txt")]}]}}
    values = small_values(raw, tmp_path / "store", **SETTINGS, data__curation=curation)
    config = write_config(tmp_path / "curated.yaml", values)
    ended = command(which, config, "--dry-run")
    assert ended.status == 0, ended
    assert re.search(expected, ended.stdout)
    assert not (tmp_path / "store" / "decisions").exists() and not (tmp_path / "store" / "measures").exists()


def test_a_look_at_a_local_store_loads_no_prefect(config: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    commands = [[command, f"store={tmp_path / 'store'}"] for command in ("list", "gc")]
    commands += [[command, str(tmp_path / "store")] for command in ("pin", "leftovers")]
    statuses, loaded, _, said = run_all(*commands, ["explain", config], HEADRACE_CREDENTIALS="aws-credentials/nobody")
    assert statuses == [0] * 5, said
    assert "prefect" not in loaded


def test_a_command_line_that_is_wrong_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in {
        ("nothing",): "No such command 'nothing'",
        ("list",): "Missing argument 'STORE'",
        ("compare", str(tmp_path), "one"): "give 2 to 26 runs",
        ("pin", str(tmp_path), "--remove"): "--remove needs a KEY",
        ("schema", "list"): "'list' reads no configuration",
        ("schema", "explain"): "explain reads the configurations of run and finetune: give",
        (
            "schema",
            "run",
            "--write",
            str(tmp_path / "out"),
        ): "--write writes the schemas of all commands: remove 'run'",
        ("new", "poem"): "'poem' is not one of",
    }.items():
        assert status_of(*words) == EXIT_BAD_INPUT
        assert says in capsys.readouterr().err


def test_a_stop_while_libraries_are_loaded_ends_a_command_with_75(
    config: Path, server: dict[str, str], tmp_path: Path
) -> None:
    running = start_module(tmp_path / "said", "flows.command", "run", config, env=server)
    ended = running.send_when(signal.SIGTERM, lambda: heeds(running.pid, [signal.SIGTERM]))
    assert ended.status == EXIT_PREEMPTED, ended
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "store" / "runs").exists()


def test_every_command_that_runs_a_flow_is_in_every_table() -> None:
    commands = [str(info.callback.__name__) for info in jobs.commands.registered_commands if info.callback]
    assert tuple(commands) == tuple(FLOW_COMMANDS)
    assert set(schemas()) == set(DRY_RUNS)


def test_flows_are_known_by_the_names_of_their_modules() -> None:
    for command in FLOW_COMMANDS.values():
        assert load(command.flow).name == command.name
        assert command.first is None or import_module(command.first)


def test_a_file_of_the_other_kind_is_told_which_command_reads_it(config: Path, tmp_path: Path) -> None:
    labelled = write_config(tmp_path / "labelled.yaml", {"data": {"source": "csv", "train": ["a.csv"]}})
    statuses, loaded, _, said = run_all(
        ["finetune", config], ["run", labelled], ["prepare", labelled], ["run", labelled, "data.corpora=[]"]
    )
    assert statuses == [EXIT_BAD_INPUT] * 4 and not loaded & set(HEAVY)
    pretraining, finetuning, preparation, both = said.split("\n\n")
    assert (
        f"{config} is for `headrace run`: its data has the key `corpora`, which `headrace finetune` does not"
        in pretraining
    )
    assert (
        f"{labelled} is for `headrace finetune`: its data has the key `source`, which `headrace run` does not"
        in finetuning
    )
    assert "is for `headrace finetune`" in preparation and "`headrace prepare` does not read" in preparation
    assert "data.source: unknown key" in both, "what is of the command's own kind is told what is wrong with it"


def test_an_address_is_told_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert headrace("run", "s3://b/x.yaml") == EXIT_BAD_INPUT
    assert "configuration s3://b/x.yaml cannot be read" in capsys.readouterr().err


def test_a_shell_completes_commands_and_leaves_settings_alone() -> None:
    words = {"COMP_WORDS": "headrace fine", "COMP_CWORD": "1", "_HEADRACE_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "flows.command"]
    completed = subprocess.run(command, cwd=ROOT, env=words, capture_output=True, text=True, check=True).stdout
    assert completed.split() == ["finetune"]
    words |= {"COMP_WORDS": "headrace run job.yaml training.max_s", "COMP_CWORD": "3"}
    completed = subprocess.run(command, cwd=ROOT, env=words, capture_output=True, text=True, check=True).stdout
    assert completed.split() == [], "a shell would put a blank after the =, and offer all of them again after it"


@pytest.mark.parametrize("kind", Starter)
def test_a_starter_is_valid_once_it_names_files_that_are_there(
    kind: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine" / f"{kind}.yaml"
    path.parent.mkdir()
    assert status_of("new", kind, path) == 0
    assert f"headrace {RUN_BY[kind]} {path} --dry-run" in capsys.readouterr().out
    require_valid(path)
    schema = schema_for(schema_of(RUN_BY[kind])[TITLE], read_values(str(path)))
    assert "<-" in path.read_text()
    (tmp_path / "part.csv").write_text("text,label\ngood,1\nbad,0\n")
    splits = RUN_BY[kind] == "finetune"
    files = "data.train" if splits else "data.corpora.0.paths"
    job: Any = load_job(schema, str(path), [f"{files}=[{tmp_path}/*.csv]", f"store={tmp_path / 'store'}"])
    assert (job.data.train if splits else job.data.corpora[0].paths) == [f"{tmp_path}/*.csv"]
    assert status_of("new", kind, path) == EXIT_BAD_INPUT
    assert "already exists: choose another file name" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [kind for kind in Starter if RUN_BY[kind] == "finetune"])
def test_a_tuning_starter_fits_a_few_examples(kind: Starter) -> None:
    """Ten examples, of which nine are for training."""
    path = str(TEMPLATES / f"{kind}.yaml")
    job: Any = load_job(schema_for(schema_of("finetune")[TITLE], read_values(path)), path)
    assert make_tuning_plan(job, {"train": 9, "validation": 1}, 1).total_steps < 10


def test_the_chat_starters_own_template_needs_no_file(tmp_path: Path) -> None:
    lines = (TEMPLATES / "chat.yaml").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if "# chat_template: |-" in line)
    end = next(number for number, line in enumerate(lines) if number > start and not line.startswith("  #"))
    lines[start:end] = [line.replace("  # ", "  ", 1) for line in lines[start:end]]
    path = tmp_path / "chat.yaml"
    path.write_text("\n".join(lines))
    job: Any = load_job(schema_for(schema_of("finetune")[TITLE], read_values(str(path))), str(path))
    encoder = load_chat_encoder(
        chat_model(tmp_path / "bare", template=None), job.data.model_copy(update={"context": 64})
    )
    asked = [Message("user", "What?"), Message("assistant", "That.")]
    assert encoder.template.text(asked) == "### user\nWhat?\n### assistant\nThat.<|endoftext|>\n"


def test_a_starter_whose_schema_cannot_be_written_can_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, schema = tmp_path / "job.yaml", tmp_path / "schemas" / "pipeline.json"
    schema.parent.mkdir()
    schema.write_text('{"title": "of another tool"}')
    assert status_of("new", "text", path) == EXIT_BAD_INPUT
    assert f"{schema} exists and is not headrace's schema PipelineJob" in capsys.readouterr().err
    assert not path.exists() and "another tool" in schema.read_text()
    schema.write_text(as_text(schema_of("run")[TITLE]).replace("whole", "earlier"))
    assert status_of("new", "text", path) == 0
    assert schema.read_text() == as_text(schema_of("run")[TITLE]), "an earlier version gives way"


def test_a_folder_that_cannot_be_made_leaves_no_starter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schemas").write_text("a file")
    assert status_of("new", "text", tmp_path / "job.yaml") == EXIT_BAD_INPUT
    assert "cannot write schemas to" in capsys.readouterr().err and not (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_names_its_schema(path: Path) -> None:
    require_valid(path)


def require_valid(path: Path) -> None:
    """Fail unless a file's first line specifies a schema beside it, and the file is valid under it."""
    first = path.read_text().splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(schemas/\w+\.json)", first)
    assert named, first
    jsonschema.validate(parse_yaml(path.read_text()), json.loads((path.parent / named[1]).read_text()))


def test_the_schemas_beside_the_configurations_are_up_to_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("schema", "--write", tmp_path) == 0
    made = {path.name: path.read_text() for path in (tmp_path / "schemas").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "configs" / "schemas").iterdir()}
    assert made == kept, "`headrace schema --write configs` brings them up to date"
    assert status_of("schema", "predict") == 0
    assert capsys.readouterr().out == made["predict.json"] == as_text(schema_of("predict")[TITLE])
    assert set(made) == {file_name(schema) for schema in schemas()}


def test_what_programs_read_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    nan, at = float("nan"), {"at": datetime(2026, 1, 2, tzinfo=UTC)}
    diverged = a_result({"validation": {"pearsonr": nan, "loss": float("inf")}})
    show_json([RunLine("new", best=nan), at, {"evaluation": diverged}])
    line, record, outcome = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (line["name"], line["best"], record) == ("new", None, {"at": "2026-01-02T00:00:00Z"})
    figures = outcome["evaluation"]["groups"]["validation"]["figures"]
    assert figures == {"loss": None, "pearsonr": None}


def test_down_says_that_nothing_was_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PORT", str(free_port()))
    assert status_of("down") == 0
    assert f"nothing was running that was started with PREFECT_HOME={tmp_path}" in capfd.readouterr().out


@pytest.mark.slow
def test_what_looks_at_a_store_gives_json(done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, run = done.store, only_run(done.store).removeprefix("runs/")
    (listed,) = json_of(capsys, "list", store)
    assert (listed["name"], listed["state"]) == (run, "finished")
    compared = json_of(capsys, "compare", store, run, run, "--html", tmp_path / "page.html")
    assert [each["letter"] for each in compared["runs"]] == ["A", "B"] and "identical" in compared["verdict"]
    assert (tmp_path / "page.html").exists()
    assert json_of(capsys, "lineage", store, run, "--check")["run"] == f"runs/{run}"
    stages = json_of(capsys, "explain", write_config(tmp_path / "job.yaml", done.job.model_dump(exclude_unset=True)))
    assert {stage["verdict"] for stage in stages} == {"reused"}
    assert json_of(capsys, "gc", store) == {"removed": False, "found": [], "pinned": []}
    assert json_of(capsys, "leftovers", store) == {"removed": False, "found": []}
    store = shutil.copytree(store, tmp_path / "store")
    assert json_of(capsys, "pin", store, run) == {"pinned": [f"runs/{run}"]}
    assert json_of(capsys, "pin", store, run, "--remove") == {"pinned": []}
    assert status_of("pin", store) == 0
    assert capsys.readouterr().out == f"{store} has no pins\n"


@pytest.mark.deep
@pytest.mark.slow
def test_a_pipeline_runs_from_end_to_end(config: Path, command: Callable[..., Ended], tmp_path: Path) -> None:
    ended = command("run", config, "training.max_steps=4", "--verify", "--json")
    assert ended.status == 0, ended.stderr
    outcome = json.loads(ended.stdout)
    assert (tmp_path / "store" / outcome["report"]).exists()
    run = f"run={outcome['run'].removeprefix('runs/')}"
    by_file = [write_config(tmp_path / "promote.yaml", {"store": str(tmp_path / "store"), "name": "words"}), run]
    by_words = [f"store={tmp_path / 'store'}", "name=words", run, "reason=the same again"]
    for given in (by_file, by_words):
        promoted = command("promote", *given)
        assert promoted.status == 0, promoted.stderr
        assert f"{outcome['run']} since" in promoted.stdout

"""The documentation's commands, configurations and programs are valid."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.main import get_command

from flows import FLOW_COMMANDS
from flows.commands import app
from flows.commands.starters import TEMPLATES
from flows.schemas import TITLE, file_name, schema_of, schemas
from tests import ROOT
from tests.docs.fields import fields_of
from tests.docs.pages import DOCS, PAGES, Block, blocks, commands, name_of
from tests.trainer.preparing import job_of, run
from trainer.config.files import override, parse_yaml, validate_job
from trainer.data.decisions import CorpusDecisions
from trainer.store.checked_files import BLOCK_BYTES

PART = "part of a job for headrace "
WHOLE = {"run": TEMPLATES / "text.yaml", "finetune": TEMPLATES / "csv.yaml"}
"""The jobs that parts are put into."""

SECTIONS = ("data", "training", "evaluation")
"""Keys that a part changes key by key; others it replaces."""

SCHEMAS = {file_name(schema): schema for schema in schemas()}
GROUP: Any = get_command(app)


def id_of(value: Any) -> str:
    return str(value)


@pytest.mark.parametrize(("block", "line"), commands(), ids=id_of)
def test_a_command_line_is_one_that_headrace_takes(block: Block, line: str) -> None:
    _, *words = shlex.split(line, comments=True)
    if words[0].startswith("--"):
        assert words[0] in {option for each in GROUP.params for option in each.opts}  # to parse it would carry it out
        return
    with GROUP.make_context("headrace", list(words)) as context:
        name, command, rest = GROUP.resolve_command(context, words)
        with command.make_context(name, rest, parent=context) as made:
            given = [made.params.get("config") or "", *(made.params.get("words") or [])]
    for word in (each for each in given if "=" in each):
        path = word.partition("=")[0]
        assert path in fields_of(name), f"{block}: {path} is no setting of {name}"


def test_an_example_of_a_deployment_finds_the_server_and_fits_the_deployed_job() -> None:
    deployed = parse_yaml((ROOT / "deployments" / "prefect.yaml").read_text("utf-8"))["deployments"]
    (job,) = [each["parameters"]["job"] for each in deployed if each["name"] == "pretrain"]
    found = [block for block in blocks("") + blocks("sh") if "headrace up\n" in block.text]
    for block in found:
        assert "prefect" not in block.text.partition("export PREFECT_API_URL=")[0], f"{block}: finds no deployment"
        for words in re.findall(r"data-to-model/pretrain -p 'set=(.*)'", block.text):
            override(validate_job(SCHEMAS["pipeline.json"], job, str(block)), json.loads(words))
    assert len(found) >= 2


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_that_runs_an_example_names_what_writes_its_data(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in (line for block in blocks("", page) for line in block.text.splitlines() if "data.paths=" not in line):
        for path in re.findall(r"\bconfigs/[\w-]+\.yaml", line):
            for folder in re.findall(r"\bdata/(raw|pairs|tasks|chats|preferences)/", (ROOT / path).read_text("utf-8")):
                target = {"raw": "corpora"}.get(folder, folder)
                assert f"`make {target}`" in text, f"{name_of(page)}: {line}: `make {target}` writes its data"


def test_the_page_about_formats_names_each_array_of_decisions() -> None:
    page = (DOCS / "reference" / "formats.md").read_text(encoding="utf-8")
    arrays = [name for name, kind in CorpusDecisions.__annotations__.items() if "ndarray" in str(kind)]
    assert arrays and not [name for name in arrays if not re.search(rf"^    {name} +u?(int|float)\d+, ", page, re.M)]


def test_there_are_command_lines() -> None:
    assert {line.split()[1] for _, line in commands()} >= {
        *FLOW_COMMANDS,
        "new",
        "explain",
        "list",
        "compare",
        "lineage",
        "gc",
        "pin",
    }


@pytest.mark.parametrize("block", blocks("yaml"), ids=id_of)
def test_a_configuration_is_one_that_headrace_takes(block: Block) -> None:
    values = parse_yaml(block.text)
    if block.title.startswith(PART):
        command = block.title.removeprefix(PART)
        schema, values = (
            schema_of(command)[TITLE],
            put_into(parse_yaml(WHOLE[command].read_text(encoding="utf-8")), values),
        )
    else:
        named = re.match(r"# yaml-language-server: \$schema=schemas/(\S+)\n", block.text)
        assert named, (
            f"{block}: a whole job names its schema in its first line, and a part has the title {PART!r} COMMAND"
        )
        schema = SCHEMAS[named[1]]
    validate_job(schema, values, str(block))


def put_into(job: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """A job with one part changed."""
    changed = {key: {**job.get(key, {}), **value} if key in SECTIONS else value for key, value in part.items()}
    return {**job, **changed}


@pytest.mark.parametrize("block", blocks("python"), ids=id_of)
def test_a_program_is_python(block: Block) -> None:
    compile(block.text, str(block), "exec")


def program(title: str) -> dict[str, Any]:
    """The definitions of a program in the page about formats."""
    (block,) = (block for block in blocks("python", DOCS / "reference" / "formats.md") if block.title == title)
    assert len(block.text.splitlines()) < 20
    names: dict[str, Any] = {}
    exec(block.text, names)
    return names


def shard_set(store: Path) -> Path:
    """The folder of the only shard set in a store."""
    (found,) = (store / "shards").iterdir()
    return found


def test_the_reader_of_shards_gives_the_documents_back(code: Path, tmp_path: Path) -> None:
    run(job_of(code, tmp_path, shards={"num_shards": 2}))
    folder = shard_set(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    details, made_with = manifest["details"], manifest["inputs"]["tokenizer"]["key"]
    tokenizer = Tokenizer.from_file(str(folder.parents[1] / made_with / "tokenizer.json"))
    read = program("read_shard.py")["read_shard"]
    texts = []
    for number in range(details["num_shards"]):
        for ids in [*read(folder, number), *read(folder, number, "validation")]:
            assert ids[-1] == details["eos_id"] and not np.any(ids[:-1] == details["eos_id"])
            texts.append(tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False))
    assert sorted(texts) == sorted(path.read_text(encoding="utf-8") for path in code.rglob("*.py"))


def test_the_programs_that_compare_checksums_find_what_was_changed(own: Path) -> None:
    folder = shard_set(own)
    blocks_of, files_of = program("check_blocks.py")["damaged_blocks"], program("artifact.py")["damaged_files"]
    assert files_of(folder) == [] and blocks_of(folder, 0) == []
    path = folder / "shard-00000.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert files_of(folder) == ["shard-00000.bin"]
    assert blocks_of(folder, 0) == [(len(data) - 1) // BLOCK_BYTES]


def test_every_variable_that_headrace_has_is_documented() -> None:
    files = [path for folder in ("flows", "tasks", "trainer") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in files for name in re.findall(r"\"(HEADRACE_[A-Z_]+)\"", path.read_text(encoding="utf-8"))}
    text = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    assert read == set(re.findall(r"^\| `(HEADRACE_[A-Z_]+)`", text, re.MULTILINE))

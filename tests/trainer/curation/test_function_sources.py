"""The files that a user's function comes from: a change in one of them names its verdicts anew."""

import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.common.errors import ConfigError
from trainer.curation import functions
from trainer.curation.functions import source_files
from trainer.curation.measures import Batch, Function
from trainer.data.readers import Document

JUDGE = "def judge(text):\n    return True\n"
LONG = "def judge(text):\n    return len(text) * 2 > words.MOST"
TEXT = Batch([Document(b"a text", ends=True)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python finds modules in, and forgets after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in repr(module)]:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    """Python's files by their modules' names, with `__` between folders; a folder's own is called `init`."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path = path.with_stem("__init__") if path.stem == "init" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("package", "imports"),
    [
        ("by_name", "from by_name.words import MOST"),
        ("by_dots", "from .words import MOST"),
        ("by_package", "from . import words"),
        ("by_import", "import by_import.words as words"),
        ("by_function", "def later():\n    from .words import MOST"),
        ("by_other", "from .between import MOST"),
        ("by_deep", "from .deep.inner import MOST"),
        ("by_up", "from .deep.upward import MOST"),
        ("by_beside", "from words_beside import MOST"),
    ],
)
def test_what_a_module_of_a_package_imports_names_its_verdicts(folder: Path, package: str, imports: str) -> None:
    written = {
        "init": "", "rules": f"{imports}\n{JUDGE}", "words": "MOST = 1\n", "between": "from .words import *\n",
        "deep__init": "", "deep__inner": "MOST = 1\n", "deep__upward": "from ..words import MOST\n", "unused": "",
    }  # fmt: skip
    write(folder, words_beside="MOST = 1\n", **{f"{package}__{name}": text for name, text in written.items()})
    before = Function(f"{package}.rules:judge").source
    (folder / package / "unused.py").write_text("changed = True\n")
    assert Function(f"{package}.rules:judge").source == before
    changed = {"by_deep": f"{package}/deep/inner.py", "by_beside": "words_beside.py"}.get(
        package, f"{package}/words.py"
    )
    (folder / changed).write_text("MOST = 2\n")
    assert Function(f"{package}.rules:judge").source != before


def test_a_function_of_a_package_itself_is_of_what_that_imports(folder: Path) -> None:
    write(folder, whole__init="from . import rules\njudge = rules.judge\n", whole__rules=JUDGE)
    assert Function("whole:judge").source
    assert source_files("whole") == [folder / "whole" / "__init__.py", folder / "whole" / "rules.py"]


def test_importing_a_module_runs_the_packages_above_it(folder: Path) -> None:
    write(folder, upper__init="from . import settings\n", upper__settings="", upper__rules=JUDGE)
    files = ["__init__.py", "rules.py", "settings.py"]
    assert Function("upper.rules:judge").source and source_files("upper.rules") == [
        folder / "upper" / name for name in files
    ]


def test_a_package_without_a_file_of_its_own_is_followed_too(folder: Path) -> None:
    write(folder, spaced__rules=f"from . import words\n{JUDGE}", spaced__words="")
    assert Function("spaced.rules:judge").source
    assert source_files("spaced.rules") == [folder / "spaced" / "rules.py", folder / "spaced" / "words.py"]


def test_modules_that_import_each_other_and_what_cannot_be_read_are_no_hindrance(folder: Path) -> None:
    fallback = "try:\n    from older import MOST\nexcept SyntaxError:\n    import turning\n"
    write(folder, turning=f"import turned\n{JUDGE}", turned=fallback, older="print 'an old Python'\n")
    assert Function("turning:judge").source
    assert [path.name for path in source_files("turning")] == ["older.py", "turned.py", "turning.py"]


@pytest.mark.parametrize(
    "function", ["zlib:crc32", "pydantic_core._pydantic_core:to_json", "builtins:len", "textwrap:dedent"]
)
def test_a_function_of_a_library_is_used_without_the_libraries_beside_it(function: str) -> None:
    assert Function(function).source
    module = function.partition(":")[0]
    named = {Path(module.replace(".", "/")).parts[0]}
    assert all(named & {path.name.split(".")[0], path.parent.name} for path in source_files(module))


def test_installed_packages_are_of_their_own_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = folder / "site-packages"
    write(
        installed,
        bought__init=f"import helper\nfrom .words import MOST\n{JUDGE}",
        bought__words="MOST = 1\n",
        helper="",
    )
    monkeypatch.syspath_prepend(str(installed))
    assert Function("bought:judge").source
    assert source_files("bought") == [installed / "bought" / "__init__.py", installed / "bought" / "words.py"]


@pytest.mark.parametrize("changed", ["rules", "words"])
def test_a_process_that_goes_on_uses_a_changed_function_under_its_new_name_alone(folder: Path, changed: str) -> None:
    """As one does that several curations are done in."""
    package = f"lasting_{changed}"
    texts = {"init": "", "words": "MOST = 9\n", "rules": f"from . import words\n{LONG}\n"}
    write(folder, **{f"{package}__{name}": text for name, text in texts.items()})
    before = Function(f"{package}.rules:judge")
    assert before.source and before(TEXT)["value"].tolist() == [1.0]
    others = {"words": "MOST = 109\n", "rules": f"from . import words\n{LONG} + 100\n"}
    write(folder, **{f"{package}__{changed}": others[changed]})
    after = Function(f"{package}.rules:judge")
    assert after.source != before.source
    assert after(TEXT)["value"].tolist() == [0.0]
    assert before(TEXT)["value"].tolist() == [1.0], "what was begun with it goes on with it"


@pytest.mark.parametrize("changed", ["begun", "words_begun"])
def test_a_process_that_loads_a_function_later_does_not_use_a_changed_one(
    folder: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is sent the digest of the files that its verdicts are kept under, and loads them when it is started."""
    write(folder, begun=f"from words_begun import MOST\n{JUDGE}", words_begun="MOST = 1\n")
    begun = Function("begun:judge")
    assert begun.source
    sent = pickle.dumps(begun)
    forget("begun", "words_begun", monkeypatch=monkeypatch)
    assert pickle.loads(sent)(TEXT)["value"].tolist() == [1.0]
    with open(folder / f"{changed}.py", "a") as file:
        file.write("# changed\n")
    forget("begun", "words_begun", monkeypatch=monkeypatch)
    with pytest.raises(ConfigError, match=r"the source files of 'begun:judge' have changed since the command started"):
        pickle.loads(sent)(TEXT)


@pytest.mark.parametrize("late", [False, True])
def test_code_that_python_compiled_of_another_version_is_not_run(
    late: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("prefect.server.api.server")  # loads a library with a loader of its own for all modules
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    imported = "from words_twice import MOST"
    rules = f"def judge(text):\n    {imported}\n    return MOST\n"
    write(folder, twice=rules if late else f"{imported}\n{rules}", words_twice="MOST = 1\n")
    status = (folder / "words_twice.py").stat()
    for module in ("twice", "words_twice"):  # as another program does, which leaves compiled code
        importlib.import_module(module)
    assert (folder / "__pycache__").is_dir()
    (folder / "words_twice.py").write_text("MOST = 2\n")
    os.utime(folder / "words_twice.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    forget("twice", "words_twice", monkeypatch=monkeypatch)
    assert Function("twice:judge")(TEXT)["value"].tolist() == [2.0]


def test_modules_in_machine_code_are_loaded_as_ever(folder: Path) -> None:
    assert Function("regex:findall").source
    assert functions.load_function("regex:findall", Function("regex:findall").source)("a", "aa") == ["a", "a"]


def forget(*modules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process know no more of functions and modules than a new one."""
    for name in modules:
        sys.modules.pop(name, None)
    monkeypatch.setattr(functions, "_loaded", {})
    functions.load_function.cache_clear()

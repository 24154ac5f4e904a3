"""Which files of its folder a Python file imports."""

from pathlib import Path

import pytest

from trainer.common.imports import with_imports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that import each other, and one that nobody imports."""
    files = {
        "main.py": "import os\nfrom .one import x\nimport package.inner\n",
        "one.py": "def late():\n    from two import y\n",
        "two.py": "from . import main\nfrom .. import beyond\nfrom nowhere import z\n",
        "package/__init__.py": "from .more import a\n",
        "package/inner.py": "",
        "package/more.py": "from ..three import b\n",
        "three.py": "this is no Python",
        "alone.py": "import one\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_file_comes_first_and_then_what_it_imports_directly_or_not(folder: Path) -> None:
    names = ["main.py", "one.py", "package/__init__.py", "package/inner.py", "package/more.py", "three.py", "two.py"]
    assert with_imports(folder / "main.py") == [folder / name for name in names]
    assert with_imports(folder / "package/inner.py") == [folder / "package/inner.py"]
    assert with_imports(folder / "three.py") == [folder / "three.py"]

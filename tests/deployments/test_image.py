"""The image's build file, which cannot be built here: a linter's findings, and the file's statements."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests import ROOT
from tests.deployments.variants import job_templates

DOCKERFILE = ROOT / "deployments" / "Dockerfile"
LINTER = Path(sys.executable).with_name("hadolint")


def instructions() -> list[tuple[str, str]]:
    """Every instruction with its arguments, with continued lines joined and without comments."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def arguments(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def lint(text: str) -> str:
    """hadolint's output for a file, with an error status if there is any."""
    ended = subprocess.run([LINTER, "--no-color", "-"], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == (ended.stdout == ""), ended.stderr
    return ended.stdout


def test_the_linter_finds_nothing() -> None:
    assert lint(DOCKERFILE.read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("python:${PYTHON}", "python:latest", "DL3007"),
        ("tini=0.19.*", "tini", "DL3008"),
        ("    && rm -rf /var/lib/apt/lists/* \\\n", "", "DL3009"),
        ("COPY tasks", "ADD tasks", "DL3020"),
    ],
)
def test_the_linter_finds_what_is_made_worse(before: str, after: str, rule: str) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert before in text
    assert rule in lint(text.replace(before, after))


def test_the_base_is_one_exact_slim_version() -> None:
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-[a-z]+", arguments("ARG")[0])
    assert [rest.split(" ")[0] for rest in arguments("FROM")] == ["python:${PYTHON}"] * 2


def test_the_container_s_user_is_not_root_and_is_the_one_that_volumes_are_given_to() -> None:
    user = job_templates.USER
    assert arguments("USER") == [f"{user}:{user}"]
    assert f"useradd --uid {user} " in arguments("RUN")[-1]
    assert "RUN" not in [word for word, _ in instructions()[[word for word, _ in instructions()].index("USER") :]]


def test_what_pip_installs_has_an_exact_version_and_leaves_no_cache() -> None:
    installs = re.findall(r"pip install [^&;]+", " && ".join(arguments("RUN")))
    assert len(installs) == 4
    for each in installs:
        assert (
            "--constraint constraints.txt" in each
            or "==" in each
            or each.strip().endswith("--no-deps --no-build-isolation .")
        )
    assert any("PIP_NO_CACHE_DIR=1" in each for each in arguments("ENV"))


def test_every_library_without_a_wheel_may_be_built() -> None:
    """uv leaves a file in each installed distribution that it had to build, in the versions of constraints.txt."""
    built = {each.name for each in distributions() if each.read_text("uv_build.json") is not None} - {"headrace"}
    (listed,) = re.findall(r"--only-binary :all: --no-binary (\S+)", " ".join(arguments("RUN")))
    assert built, "the environment was installed by uv"
    assert {name.replace("_", "-") for name in built} <= set(listed.split(","))


def test_nothing_secret_is_part_of_the_build() -> None:
    names = re.findall(r"(\w+)=", " ".join(arguments("ARG") + arguments("ENV")))
    assert "VARIANT" in names
    assert not [name for name in names if re.search("KEY|SECRET|TOKEN|PASSWORD|AUTH", name)]


def test_a_build_sees_what_the_file_copies_and_nothing_else() -> None:
    copied = {path for rest in arguments("COPY") if "--from" not in rest for path in rest.split()[:-1]}
    assert {path for path in copied if not (ROOT / path).exists()} == set()
    everything, *kept, last = re.findall(r"(?m)^[^#\n].*$", (ROOT / ".dockerignore").read_text(encoding="utf-8"))
    assert (everything, last) == ("*", "**/__pycache__")
    assert {each.removeprefix("!") for each in kept} == copied
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {package.partition(".")[0] for package in packages} <= copied


def scripts(word: str) -> list[str]:
    """The Python programs in the RUN instruction that contains a word."""
    (run,) = (rest for rest in arguments("RUN") if word in rest)
    return [script for option, script in pairwise(shlex.split(run)) if option == "-c"]


@pytest.mark.parametrize("extras", [[], ["aws"], ["aws", "ray"]])
def test_the_image_gets_every_library_that_the_project_names(extras: list[str]) -> None:
    (script,) = scripts("tomllib")
    assert "EXTRAS=aws" in arguments("ARG")
    command = [sys.executable, "-c", script.replace("${EXTRAS}", ",".join(extras))]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed == [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_a_build_stops_when_torch_is_for_other_hardware_than_asked_for(variant: str, tmp_path: Path) -> None:
    (script,) = scripts("torch.version.cuda")
    for cuda, stops in (("None", variant == "gpu"), ("'13.0'", variant == "cpu")):
        (tmp_path / "torch.py").write_text(f"class version: cuda = {cuda}\n__version__ = '2.13.0'\n")
        command = [sys.executable, "-B", "-c", script.replace("${VARIANT}", variant)]
        ended = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
        )
        assert (ended.returncode == 1) == stops, ended.stderr
        assert ("see TORCH_INDEX" in ended.stderr) == stops

"""The container deployments in their file, and the workers' job configurations for them."""

import importlib.util
from types import ModuleType
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from prefect.utilities.templating import apply_values

from tests import ROOT

FILE = ROOT / "deployments" / "containers.yaml"
KINDS = ("docker", "kubernetes")


def _load(name: str) -> ModuleType:
    """A module of deployments/, which is a folder of scripts."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "deployments" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job_templates = _load("job_templates")


def variants(kind: str | None = None) -> list[dict[str, Any]]:
    """The deployments of a kind of work pool, or all."""
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return [each for each in found if kind in (None, each["name"])]


def variant(kind: str, flow: str) -> dict[str, Any]:
    """One deployment."""
    (found,) = (each for each in variants(kind) if each["flow_name"] == flow)
    return found


def faults(kind: str, values: dict[str, Any]) -> list[str]:
    """Problems of job variables: names that the template does not have, and values that its schema refuses."""
    schema = job_templates.job_template(kind)["variables"]
    errors = Draft202012Validator({**schema, "additionalProperties": False}).iter_errors(values)
    return [f"{error.json_path}: {error.message}" for error in errors]


def rendered(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The job configuration of a worker of that kind, with Prefect's template filled in."""
    template = job_templates.job_template(kind)
    defaults = {
        name: each["default"] for name, each in template["variables"]["properties"].items() if "default" in each
    }
    filled: dict[str, Any] = apply_values(template["job_configuration"], defaults | values)
    return filled

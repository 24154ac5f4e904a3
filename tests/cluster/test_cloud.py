"""The cluster file for a cloud, against Ray's schema."""

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT
from trainer import __version__


@pytest.fixture
def described() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "ray-aws.yaml").read_text(encoding="utf-8"))
    return found


def faults(described: dict[str, Any]) -> list[str]:
    schema = json.loads((files("ray.autoscaler") / "ray-schema.json").read_text(encoding="utf-8"))
    return [error.json_path for error in jsonschema.Draft7Validator(schema).iter_errors(described)]


def test_the_cluster_file_fits_rays_schema(described: dict[str, Any]) -> None:
    assert faults(described) == []
    assert described["head_node_type"] in described["available_node_types"]
    assert described["docker"]["image"] == f"REGISTRY/headrace:{__version__}-gpu"


@pytest.mark.parametrize(
    "change", [{"max_workers": "8"}, {"provider": {}}, {"head_node": {}}, {"docker": {"run_options": "-v"}}]
)
def test_what_ray_would_refuse_is_found(described: dict[str, Any], change: dict[str, Any]) -> None:
    assert faults({**described, **change}) != []

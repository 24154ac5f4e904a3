"""The Docker and Kubernetes deployments: their values fit the workers' schemas, and give the intended jobs."""

import importlib
from typing import Any

import pytest
import yaml
from docker.types import HostConfig
from prefect import Flow

from tests import ROOT
from tests.deployments.variants import KINDS, faults, job_templates, rendered, variant, variants
from trainer import __version__

FLOWS = ["data-to-model", "prepare-data", "train-model", "evaluate-model", "finetune", "predict"]
ON_GPUS = [name for name in FLOWS if name != "prepare-data"]


def job_variables(kind: str, flow: str) -> dict[str, Any]:
    found: dict[str, Any] = variant(kind, flow)["work_pool"]["job_variables"]
    return found


def pod_of(flow: str) -> dict[str, Any]:
    pod: dict[str, Any] = rendered("kubernetes", job_variables("kubernetes", flow))["job_manifest"]["spec"]["template"][
        "spec"
    ]
    return pod


@pytest.mark.parametrize("kind", KINDS)
def test_every_flow_has_a_variant_that_says_what_its_local_deployment_says(kind: str) -> None:
    local = {
        each["flow_name"]: each
        for each in yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    }
    assert [each["flow_name"] for each in variants(kind)] == FLOWS
    for each in variants(kind):
        assert each["work_pool"]["name"] == kind
        for key in ("description", "entrypoint", "tags", "concurrency_limit"):
            assert each.get(key) == local[each["flow_name"]].get(key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLOWS)
def test_job_variables_fit_the_schema_of_the_worker(kind: str, name: str) -> None:
    assert faults(kind, job_variables(kind, name)) == []


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        ("docker", {"gpus": 1}, "'gpus' was unexpected"),
        ("docker", {"env": {"HEADRACE_CACHE_BYTES": 50}}, "HEADRACE_CACHE_BYTES"),
        ("docker", {"volumes": "cache:/cache"}, "$.volumes"),
        ("kubernetes", {"gpus": "all"}, "$.gpus"),
        ("kubernetes", {"image_pull_policy": "IfPossible"}, "$.image_pull_policy"),
        ("kubernetes", {"mem_limit": "16g"}, "'mem_limit' was unexpected"),
    ],
)
def test_job_variables_that_a_worker_does_not_know_are_found(kind: str, changes: dict[str, Any], place: str) -> None:
    (fault,) = faults(kind, job_variables(kind, "train-model") | changes)
    assert place in fault


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_changes_nothing_that_prefect_ships(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = job_templates.job_template(kind)
    monkeypatch.setitem(job_templates.EXTENSIONS, kind, lambda job: {})
    shipped = job_templates.job_template(kind)
    assert missing(shipped, ours) == []
    assert missing(ours, shipped) != []


def missing(part: Any, whole: Any, place: str = "$") -> list[str]:
    """The paths at which a part is missing from, or differs from, the whole."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return [found for key in part for found in missing(part[key], whole.get(key), f"{place}.{key}")]
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return [found for a, b in zip(part, whole, strict=True) for found in missing(a, b, f"{place}[]")]
    return [] if part == whole else [place]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLOWS)
def test_entrypoints_import_and_take_their_parameters(kind: str, name: str) -> None:
    module, _, function = variant(kind, name)["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), function)
    assert isinstance(flow, Flow) and flow.name == name
    parameters = variant(kind, name)["parameters"]
    flow.validate_parameters(parameters)
    with pytest.raises(Exception, match="colour"):
        flow.validate_parameters({"job": {**parameters["job"], "colour": "red"}})


@pytest.mark.parametrize("name", FLOWS)
def test_images_are_of_this_version_and_only_preparing_data_takes_the_one_without_gpus(name: str) -> None:
    image = f"headrace:{__version__}-{'gpu' if name in ON_GPUS else 'cpu'}"
    assert rendered("docker", job_variables("docker", name))["image"] == image
    assert [container["image"] for container in pod_of(name)["containers"]] == [image]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLOWS)
def test_no_container_is_given_a_secret_and_all_say_that_they_live(kind: str, name: str) -> None:
    env = rendered(kind, job_variables(kind, name))["env"]
    assert env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30", "deployments/automations.yaml waits for it"
    assert env["HEADRACE_CREDENTIALS"].startswith("aws-credentials/")
    assert not [key for key in env if "SECRET" in key or "AUTH" in key or key.endswith(("KEY", "TOKEN", "PASSWORD"))]


@pytest.mark.parametrize("name", FLOWS)
def test_docker_gives_all_gpus_to_the_flows_that_train(name: str) -> None:
    job = rendered("docker", job_variables("docker", name))
    assert job["volumes"] == [f"headrace-cache:{job['env']['HEADRACE_CACHE']}"]
    further = job.get("container_create_kwargs", {})
    host = HostConfig(version="1.44", **further)
    if name in ON_GPUS:
        (request,) = host["DeviceRequests"]
        assert (request["Driver"], request["Count"], request["Capabilities"]) == ("nvidia", -1, [["gpu"]])
        assert host["ShmSize"] == 8 * 2**30
    else:
        assert further == {} and "DeviceRequests" not in host


@pytest.mark.parametrize("name", FLOWS)
def test_pods_ask_for_a_gpu_only_where_one_trains(name: str) -> None:
    (container,) = pod_of(name)["containers"]
    assert container["resources"]["limits"] == ({"nvidia.com/gpu": 1} if name in ON_GPUS else {})
    assert container["resources"]["requests"] == {"cpu": "4", "memory": "16Gi"}


@pytest.mark.parametrize("name", FLOWS)
def test_pods_run_as_the_image_s_user_with_time_to_save_and_room_for_their_files(name: str) -> None:
    pod = pod_of(name)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["fsGroup"] == job_templates.USER
    assert pod["terminationGracePeriodSeconds"] == 300
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["env"]["HEADRACE_CACHE"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    (cache,) = (volume for volume in pod["volumes"] if volume["name"] == "cache")
    room = int(cache["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
    assert room > int(container["env"]["HEADRACE_CACHE_BYTES"]), "else the pod is evicted when its cache is full"


def test_what_a_deployment_leaves_out_is_not_in_the_manifest() -> None:
    pod = rendered("kubernetes", {"image": "headrace:x-cpu"})["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "volumes" not in pod and not {"envFrom", "volumeMounts"} & container.keys()
    assert "nvidia.com/gpu" not in container["resources"]["limits"]

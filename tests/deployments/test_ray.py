"""The files for Ray clusters: their structure, the programs in them, and the jobs that they start.

`tests/cluster` checks against Ray's schema of cluster files; KubeRay's schema is not available offline.
"""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from flows.commands.starters import TEMPLATES
from tests import ROOT
from trainer import __version__
from trainer.config.engines import RayEngine
from trainer.config.files import load_job
from trainer.config.jobs import PipelineJob

FOLDER = ROOT / "deployments"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def clusters() -> list[dict[str, Any]]:
    """The specifications of clusters for Kubernetes."""
    cluster, job = documents("ray-kubernetes.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == (job["apiVersion"], "RayCluster") == ("ray.io/v1", "RayCluster")
    assert job["kind"] == "RayJob"
    return [cluster["spec"], job["spec"]["rayClusterSpec"]]


def groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def job_of(command: str, folder: Path) -> PipelineJob:
    """The job that a command starts, with a starter's values as its file."""
    _, _, _, *words = shlex.split(command)
    path = folder / "job.yaml"
    path.write_text((TEMPLATES / "text.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return load_job(PipelineJob, str(path), words)


@pytest.mark.parametrize("number", [0, 1])
def test_a_kubernetes_cluster_has_a_head_that_does_no_work_and_nodes_with_a_gpu_each(number: int) -> None:
    cluster = clusters()[number]
    head, *workers = groups(cluster)
    assert head["rayStartParams"]["num-cpus"] == "0"
    for group in workers:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("number", [0, 1])
def test_the_pods_of_a_kubernetes_cluster_mount_what_they_name(number: int) -> None:
    for group in groups(clusters()[number]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"REGISTRY/headrace:{__version__}-gpu"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert all(set(each) == {"name", "value"} and isinstance(each["value"], str) for each in container["env"])
        for name, request in container["resources"]["requests"].items():
            assert name in container["resources"]["limits"], request


def test_the_image_has_what_kuberay_asks_nodes_by() -> None:
    """KubeRay starts jobs with Ray's dashboard and checks nodes with wget: issue 2063 of ray-project/kuberay."""
    (ray,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        "ray"
    ]
    assert {"default", "train"} == Requirement(ray).extras
    assert " wget=" in (FOLDER / "Dockerfile").read_text(encoding="utf-8")


def fields(spec: dict[str, Any], *names: str) -> None:
    """Raise if a specification has other fields; KubeRay silently drops fields that it does not know."""
    assert set(spec) <= set(names), set(spec) - set(names)


def test_the_kubernetes_objects_have_only_fields_that_kuberay_knows() -> None:
    """The used fields of `raycluster_types.go` and `rayjob_types.go` of ray-project/kuberay."""
    for cluster in clusters():
        fields(cluster, "rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs")
        head, *workers = groups(cluster)
        fields(head, "rayStartParams", "template")
        for group in workers:
            fields(group, "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template")
        for group in (head, *workers):
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    _, job = documents("ray-kubernetes.yaml")
    fields(
        job["spec"], "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "rayClusterSpec",
    )  # fmt: skip


def test_the_kubernetes_job_asks_for_as_many_ranks_as_its_cluster_has_nodes(tmp_path: Path) -> None:
    _, job = documents("ray-kubernetes.yaml")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    started = job_of(job["spec"]["entrypoint"], tmp_path)
    assert isinstance(started.engine, RayEngine)
    assert (started.engine.min_workers, started.training.processes) == (group["minReplicas"], group["maxReplicas"])


def test_the_containers_of_a_machine_see_the_same_folders_under_the_same_names() -> None:
    (compose,) = documents("ray-compose.yaml")
    head, node = compose["services"]["head"], compose["services"]["node"]
    assert head["volumes"] == node["volumes"] and head["image"] == node["image"] == f"headrace:{__version__}-cpu"
    assert all((FOLDER / volume.split(":")[0]).resolve().parent == ROOT for volume in head["volumes"])
    assert f"--address=head:{port(head['command'])}" in node["command"]
    assert node["depends_on"]["head"]["condition"] == "service_healthy" and "healthcheck" in head


def port(command: list[str]) -> str:
    (found,) = (word.partition("=")[2] for word in command if word.startswith("--port="))
    return found


def test_the_commands_in_the_files_start_jobs_on_a_cluster(tmp_path: Path) -> None:
    for name in ("ray-aws.yaml", "ray-compose.yaml"):
        (line,) = (
            line for line in (FOLDER / name).read_text().splitlines() if "headrace run" in line and line.startswith("#")
        )
        command = line[line.index("headrace run") :].rstrip("'")
        assert job_of(command, tmp_path).engine == RayEngine(kind="ray")

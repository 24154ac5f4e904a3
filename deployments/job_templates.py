"""The base job template of a container work pool: Prefect's default with additions for these flows.

    python deployments/job_templates.py docker|kubernetes

prints it as JSON for `prefect work-pool create --base-job-template`; containers.yaml has the commands and the values.
Not tried on a real Docker or cluster: tests check what the workers would submit.
"""

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

USER = 10001
"""The image's user id; volumes are made writable for it."""

Template = dict[str, Any]


def job_template(kind: str) -> Template:
    """The template for a kind of work pool. Raises `KeyError` for a kind that is not in `EXTENSIONS`."""
    extend = EXTENSIONS[kind]
    shipped = json.loads(
        files("prefect.server.api").joinpath("collections_data/views/aggregate-worker-metadata.json").read_bytes()
    )
    template: Template = shipped[f"prefect-{kind}"][kind]["default_base_job_configuration"]
    template["variables"]["properties"] |= extend(template["job_configuration"])
    return template


def _docker(job: Template) -> Template:
    """Add further docker-py arguments, such as GPUs, which the worker accepts but Prefect's default template lacks."""
    job["container_create_kwargs"] = "{{ container_create_kwargs }}"
    return {
        "container_create_kwargs": {
            "title": "Further arguments",
            "description": "Arguments of docker-py's containers.create: device_requests for GPUs, shm_size, ...",
            "type": "object",
        }
    }


def _kubernetes(job: Template) -> Template:
    """Add GPUs, volumes, and time to save when a pod is evicted; unset variables are omitted from the manifest."""
    pod = job["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["resources"]["limits"]["nvidia.com/gpu"] = "{{ gpus }}"
    container["envFrom"] = "{{ env_from }}"
    container["volumeMounts"] = "{{ volume_mounts }}"
    pod["volumes"] = "{{ volumes }}"
    pod["securityContext"] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    pod["terminationGracePeriodSeconds"] = "{{ grace_seconds }}"
    return {
        "gpus": {
            "title": "GPUs",
            "description": "GPUs of the pod; training starts one rank per GPU.",
            "type": "integer",
            "minimum": 1,
        },
        "env_from": _objects("Environment from", "Secrets or config maps that become environment variables."),
        "volumes": _objects("Volumes", "Volumes of the pod."),
        "volume_mounts": _objects("Volume mounts", "Where the container mounts them."),
        "grace_seconds": {
            "title": "Grace period",
            "description": "Seconds between the request to stop, in which runs save their state, and the end.",
            "type": "integer",
            "minimum": 0,
            "default": 300,
        },
    }


def _objects(title: str, description: str) -> Template:
    return {
        "title": title,
        "description": f"{description} As in a pod's manifest.",
        "type": "array",
        "items": {"type": "object"},
    }


EXTENSIONS: dict[str, Callable[[Template], Template]] = {"docker": _docker, "kubernetes": _kubernetes}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTENSIONS:
        sys.exit(__doc__)
    print(json.dumps(job_template(sys.argv[1]), indent=2))

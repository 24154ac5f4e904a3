"""The Docker and Kubernetes deployments on a real server: all are registered, and their pools refuse bad values."""

import os
import subprocess
import sys
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import PrefectHTTPStatusError

from tests import ROOT
from tests.deployments.variants import FILE, KINDS, job_templates, variant, variants

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def deployed(server: dict[str, str]) -> None:
    """Both work pools, with everything deployed by the command in the file."""
    with get_client(sync_client=True) as client:
        for kind in KINDS:
            client.create_work_pool(
                WorkPoolCreate(name=kind, type=kind, base_job_template=job_templates.job_template(kind))
            )
    patterns = [word for kind in KINDS for word in ("--name", f"*/{kind}")]
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(FILE), *patterns]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **server}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_variants_are_registered_as_their_file_has_them(kind: str, deployed: None) -> None:
    with get_client(sync_client=True) as client:
        for each in variants(kind):
            made = client.read_deployment_by_name(f"{each['flow_name']}/{kind}")
            assert made.work_pool_name == kind and made.entrypoint == each["entrypoint"]
            assert made.job_variables == each["work_pool"]["job_variables"]
            assert made.parameters == each["parameters"]
            assert made.pull_steps == [{"prefect.deployments.steps.set_working_directory": {"directory": "/work"}}]


@pytest.mark.parametrize(("kind", "wrong"), [("docker", {"privileged": "very"}), ("kubernetes", {"gpus": "all"})])
def test_a_run_is_refused_if_its_job_variables_do_not_fit(kind: str, wrong: dict[str, Any], deployed: None) -> None:
    with get_client(sync_client=True) as client:
        training = client.read_deployment_by_name(f"train-model/{kind}").id
        run = client.create_flow_run_from_deployment(training)
        assert run.parameters == variant(kind, "train-model")["parameters"]
        client.delete_flow_run(run.id)
        with pytest.raises(PrefectHTTPStatusError, match=next(iter(wrong.values()))):
            client.create_flow_run_from_deployment(training, job_variables=wrong)

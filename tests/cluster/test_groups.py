"""Whether the workers of a stage are gone, as Ray reports to any process of the cluster."""

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Nodes
from trainer.config.engines import RayEngine
from trainer.engines import executors
from trainer.engines.executors import enter_group, group_name, is_gone
from trainer.engines.ray_cluster import Cluster, joined


@pytest.fixture
def stage(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A running stage with this process in its group."""
    monkeypatch.setattr(executors, "_own", None)
    with joined(RayEngine(**nodes.engine())) as cluster:
        enter_group(group_name(cluster.group.partition("/")[0], "a worker"))
        yield cluster


def test_a_stage_that_runs_is_not_gone(stage: Cluster) -> None:
    stage.ray.get(stage.actor.done.remote())
    assert not is_gone(stage.group)


def test_a_stage_that_has_ended_is_gone_at_once(stage: Cluster) -> None:
    assert is_gone(group_name(stage.group.partition("/")[0], "a stage of an hour ago"))


def test_of_a_stage_on_another_cluster_nothing_is_known(stage: Cluster) -> None:
    assert not is_gone(group_name("another", "a stage of an hour ago"))

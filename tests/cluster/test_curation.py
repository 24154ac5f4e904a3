"""What tasks of a cluster decide of raw text."""

from pathlib import Path

from tests.cluster.nodes import Nodes, run
from tests.support import digests, small_values


def test_a_cluster_decides_as_this_machine_does(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    decided = []
    for store, engine in ((tmp_path / "here", {}), (tmp_path / "there", {"engine": nodes.engine()})):
        values = small_values(raw, store, data__curation={"near": {}, "filters": [{"kind": "gopher_repetition"}]})
        job = {key: values[key] for key in ("store", "name", "data")}
        made, _ = run("curate", {"job": {**job, **engine}})
        decided.append({name: digest for name, digest in digests(store / made["key"]).items() if name.endswith(".npz")})
    assert decided[0] == decided[1] != {}

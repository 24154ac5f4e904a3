"""A flow run shows skipped bad records."""

import json
from pathlib import Path

from flows.prepare_data import prepare_data
from tests.flows.conftest import flow_run_of
from tests.flows.looking import artifacts
from tests.support import small_values
from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob


def test_a_flow_run_shows_which_records_were_skipped_and_why(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"The number {number} and its square {number * number}."}) for number in range(300)]
    lines[10:10] = ["{", '{"body": "x"}', '{"text": 1}', "[]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = {"name": "docs", "paths": [f"{tmp_path}/a.jsonl"], "format": "jsonl", "max_bad_records": 4}
    values = small_values(tmp_path, tmp_path / "store", data__corpora=[corpus], data__tokenizer={"vocab_size": 300})
    job = validate_job(PipelineJob, values, "test").preparation()
    for _ in ("made", "reused"):
        state = prepare_data(job, return_state=True)
        (table,) = [artifact for artifact in artifacts(flow_run_of(state)) if artifact.key == "skipped-records"]
        rows = json.loads(str(table.data))
        assert [(row["data"], row["bad records skipped"]) for row in rows] == [("docs", 4)] * 3
        assert all(row["where and why"].startswith(f"{tmp_path}/a.jsonl: line 1") for row in rows)

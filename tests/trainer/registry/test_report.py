"""Reports of a small finished run, whose files are written as the stages before write them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results

from tests.depth import once
from tests.trainer.report_runs import (
    HOSTILE,
    RUN,
    Page,
    page,
    publish,
    publish_checkpoint,
    safetensors,
    step_record,
    write_records,
)
from tests.trainer.results import a_result
from trainer.common.errors import ArtifactError, RunError
from trainer.config.jobs import PipelineJob
from trainer.data.step_plan import make_plan
from trainer.kinds.kind import identify_run
from trainer.records.basis import HarnessBasis, TextBasis
from trainer.records.evaluations import HarnessRun, Sample, Scores, Task
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.report import make_report
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import ArtifactRef, digest_file, make_manifest, read_manifest, write_manifest
from trainer.store.storage import Store
from trainer.training.identity import claim_run, final_manifest

FILES = ("report.html", "lineage.json", "final/README.md", "final/manifest.json")


def publish_shards(store: Store, corpus: str, tokens: int) -> ArtifactRef:
    totals = {"raw_bytes": 4 * tokens, "documents": 10, "tokens": tokens}
    totals |= {"validation_documents": 1, "validation_tokens": tokens // 10, "bad_records": 3, "text_bytes": 4 * tokens}
    totals |= {"validation_bytes": 4 * tokens // 10, "validation_token_bytes": 4 * tokens // 10}
    pieces = [{"path": f"/raw/{corpus}.txt", "key": f"{corpus}.txt", "index": index, "shard": 0} for index in range(2)]
    details = {"corpus": corpus, "num_shards": 1, "shard_tokens": [tokens], "totals": totals, "vocab_size": 300}
    return publish(
        store, f"shards/{corpus}-00{corpus}", "shards", {"sources.json": json.dumps(pieces).encode()}, details
    )


def evaluation_record(step: int, loss: float) -> dict:
    return {
        "kind": "evaluation",
        "step": step,
        "loss": loss,
        "tokens": 90,
        "corpora": {"prose": loss, "code": loss + 1},
    }


def score(loss: float) -> Scores:
    figures = {"loss": loss, "perplexity": 2.718281828**loss, "bits_per_byte": 1.533}
    return Scores(figures=figures, counts={"tokens": 99, "windows": 7, "text_bytes": 396})


ON_TEXT = TextBasis(
    held_out={"prose": "ab", "code": "cd"}, shards=[], tokenizer="ef", keeps_text=True, context=16, precision="fp32"
)


def write_evaluation(store: Store, loss: float) -> None:
    result = a_result(
        {}, groups={"prose": score(loss), "code": score(loss)}, total=score(loss), by="corpus",
        measured_on=ON_TEXT, of=f"loss {loss}", key=f"{RUN}/eval.json", checkpoint="tiny",
        samples=[Sample(prompt=HOSTILE, continuation="once  upon\n    a time")],
    )  # fmt: skip
    write_sealed(store, result.key, result.recorded())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one finished and evaluated run, named tiny."""
    store = Store(str(tmp_path / "store"))
    shards = [publish_shards(store, "prose", 4000), publish_shards(store, "code", 1000)]
    details = {"vocab_size": 300, "eos_token": "<|endoftext|>", "trained_on": ["prose/prose.txt#0", "code/code.txt#1"]}
    tokenizer = publish(store, "tokenizers/bpe-00bpe", "tokenizer", {"tokenizer.json": b"{}"}, details)
    corpora = [{"name": "prose", "paths": ["/raw/<b>.txt"]}, {"name": "code", "paths": ["/raw/code.txt"]}]
    job = PipelineJob(
        store=store.url,
        run="tiny",
        data={"corpora": corpora, "tokenizer": {"vocab_size": 300}},
        model={"config": {"model_type": "gpt2"}},
        training={"max_steps": 20, "context": 16},
    )
    data = PreparedData(tokenizer=tokenizer, shards=shards)
    run = identify_run(job, data)
    claim_run(store, run, job, data)
    manifests = [json.loads(store.read_bytes(f"{ref.key}/manifest.json")) for ref in shards]
    plan = make_plan(job.training, [make_manifest("shards", "x", [], each["details"]) for each in manifests], 1)
    write_sealed(store, f"{RUN}/plan.json", plan.model_dump())
    write_sealed(store, f"{RUN}/environment.json", {"device": "<i>CPU</i>", "ranks": 1, "packages": {"numpy": "2.4.6"}})
    records = [evaluation_record(0, 5.5), step_record(10), step_record(20), evaluation_record(20, 4.5)]
    records.append({"kind": "checkpoint", "step": 20, "stall_seconds": 0.02, "epoch": None, "scores": {"loss": 4.5}})
    write_records(store, records)
    pointers = ("checkpoint-last", "checkpoint-best", "epochs/epoch-0001-step-00000020-loss-4.5000")
    publish_checkpoint(store, 20, {"loss": 4.5}, pointers)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "vocab_size": 320}
    weights = safetensors({"wte": [320, 8], "bias": [8]})
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
    publish(store, f"{RUN}/final", "model", files, {"run": run.fingerprint, "context": 16, "shards": []})
    write_evaluation(store, 4.25)
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {name: store.read_bytes(f"{RUN}/{name}") for name in FILES}


def test_page_fetches_nothing_and_runs_nothing(store: Store) -> None:
    make_report(store, RUN)
    text = page(store)
    parsed = Page(text)
    assert all(link.startswith("#") for link in parsed.links)
    assert not parsed.elements & {"script", "link", "iframe", "img", "object", "embed", "base"}
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert len(parsed.ids) == len(set(parsed.ids))


def test_page_shows_hostile_text_as_text(store: Store) -> None:
    make_report(store, RUN)
    text = page(store)
    assert "<script" not in text
    assert "<b>.txt" not in text
    assert "<i>CPU" not in text
    assert '<pre dir="auto"><b>' in text, "a text in Hebrew is read from right to left"
    assert (
        "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;\n\tindented</b>once  upon\n    a time"
        in text
    )


def test_page_tells_the_run(store: Store) -> None:
    make_report(store, RUN)
    text = page(store)
    assert "Validation loss 5.500 → 4.500 nats a token in 20 steps (perplexity 245 → 90)." in text
    assert (
        "Finished model on 99 held-out tokens: 4.250 nats a token, perplexity 70.1, 1.533 bits a byte of text." in text
    )
    assert "2,568 in float32" in text
    assert "last, best, epoch 1" in text
    assert text.count("<svg") == 4
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Curves", "Results by corpus", "Samples", "Data", "Step plan", "Throughput", "Checkpoints kept", "Model",
        "Versions and machine", "Configuration",
    ]  # fmt: skip


def test_unchanged_run_keeps_its_report(store: Store) -> None:
    first = make_report(store, RUN)
    written = {name: (store.fetch(f"{RUN}/{name}")).stat().st_mtime_ns for name in FILES}
    second = make_report(store, RUN)
    assert second == first.model_copy(update={"reused": True})
    assert written == {name: (store.fetch(f"{RUN}/{name}")).stat().st_mtime_ns for name in FILES}


def test_new_evaluation_makes_a_new_report(store: Store) -> None:
    first = make_report(store, RUN)
    write_evaluation(store, 3.0)
    second = make_report(store, RUN)
    assert second.fingerprint != first.fingerprint
    assert not second.reused
    assert "3.000 nats a token" in page(store)
    assert "3.000 nats a token" in store.read_bytes(f"{RUN}/final/README.md").decode()
    assert find_damage(store, f"{RUN}/final", final_manifest(store, RUN)) == {}


@pytest.mark.parametrize("name", FILES[:3])
def test_lost_or_changed_file_is_written_again(store: Store, name: str) -> None:
    make_report(store, RUN)
    before = contents(store)
    store.delete(f"{RUN}/{name}")
    assert not make_report(store, RUN).reused
    assert contents(store) == before
    store.write_bytes(f"{RUN}/{name}", b"changed by hand")
    assert not make_report(store, RUN).reused
    assert contents(store) == before


def test_run_without_evaluation_is_reported(store: Store) -> None:
    store.delete(f"{RUN}/eval.json")
    report = make_report(store, RUN)
    assert "There is no evaluation of the finished model" in page(store)
    assert "has not been evaluated" in report.markdown
    assert read_sealed(store, f"{RUN}/lineage.json")["evaluation"] is None


def test_run_that_diverged_is_reported(store: Store) -> None:
    records = [
        evaluation_record(0, 5.5),
        {**step_record(20), "loss": float("nan")},
        evaluation_record(20, float("nan")),
    ]
    write_records(store, records)
    make_report(store, RUN)
    assert "Validation loss 5.500 → – nats a token" in page(store)
    assert make_report(store, RUN).reused


def test_steps_that_a_rollback_took_back_are_not_all_said_to_be_skipped(store: Store) -> None:
    records = [step_record(10), {"kind": "rollback", "step": 10, "attempts": 45}, {**step_record(20), "attempts": 55}]
    write_records(store, records)
    make_report(store, RUN)
    assert "35 (gradient overflow, or taken back by 1 rollback)" in page(store)


def test_a_slow_first_step_of_a_resumed_run_counts_once_in_the_time_in_steps(store: Store) -> None:
    resumed = {**step_record(30), "steps": 1, "step_seconds": 60.0}
    write_records(store, [{**step_record(10), "steps": 10}, {**step_record(20), "steps": 10}, resumed])
    make_report(store, RUN)
    assert "1 min 14 s, without evaluations and checkpoints" in page(store), "29 steps of 0.5 s, and one of 60 s"


def test_a_single_record_of_the_loss_shows_no_change(store: Store) -> None:
    write_records(store, [step_record(20)])
    make_report(store, RUN)
    assert "Training loss 4.800 nats a token in 20 steps; not evaluated during training." in page(store)


def test_run_without_metrics_is_reported(store: Store) -> None:
    store.delete(f"{RUN}/metrics.jsonl")
    make_report(store, RUN)
    assert "No metrics were recorded." in page(store)


def passes(store: Store) -> dict[str, str]:
    """The passes over each corpus in the model card."""
    lines = store.read_bytes(f"{RUN}/final/README.md").decode().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    head = next(row for row in rows if "Passes" in row)
    return {row[0]: row[head.index("Passes")] for row in rows if len(row) == len(head) and row[0] in ("prose", "code")}


def test_run_that_stopped_early_has_its_own_passes_and_steps_also_if_its_records_are_lost(store: Store) -> None:
    make_report(store, RUN)
    whole, plan = passes(store), read_sealed(store, f"{RUN}/plan.json")
    longer = [{**corpus, "passes": 200 * corpus["passes"]} for corpus in plan["corpora"]]
    write_sealed(store, f"{RUN}/plan.json", {**plan, "total_steps": 4000, "corpora": longer})
    make_report(store, RUN)
    assert passes(store) == whole and "of which 0 warm up; stopped early, after 20" in page(store)
    for lost in ("metrics.jsonl", "lineage.json"):
        store.delete(f"{RUN}/{lost}")
    assert "Trained for 20 steps; no metrics were recorded." in make_report(store, RUN).markdown
    assert passes(store) == whole


def test_passes_are_those_of_a_final_model_that_is_an_earlier_checkpoint(store: Store) -> None:
    make_report(store, RUN)
    whole, key = passes(store), f"{RUN}/final"
    final = read_manifest(store, key, "model")
    assert final is not None
    write_manifest(store, key, final.model_copy(update={"details": {**final.details, "step": 10}}))
    make_report(store, RUN)
    assert passes(store) == {name: f"{float(each) / 2:.3f}" for name, each in whole.items()}
    assert "Passes are those up to step 10, of the final model." in page(store)


def test_tasks_that_changed_during_training_are_named(store: Store) -> None:
    asked = HarnessRun(lm_eval="1", tasks={"sums": Task(version="1", identity="b")})
    result = a_result(
        {}, by="task", key=f"{RUN}/harness.json", asked=asked, measured_on=HarnessBasis(harness={"sums": "b"}),
        groups={"sums": Scores(figures={"acc": 0.5}, counts={"examples": 4})},
    )  # fmt: skip
    write_sealed(store, result.key, result.recorded())
    records = [{"kind": "tasks", "step": 0, "by": {"sums": "a"}}, {"kind": "harness", "step": 0, "sums/acc": 0.25}]
    write_records(store, records)
    make_report(store, RUN)
    assert "Results of lm-eval" in page(store) and "changed during training" not in page(store)
    write_records(store, [*records, {"kind": "tasks", "step": 10, "by": {"sums": "b"}}])
    make_report(store, RUN)
    assert "changed during training: sums at step 10. Their figures" in page(store)


def test_report_is_the_same_in_a_remote_store(store: Store) -> None:
    remote = Store("memory://bucket/store")
    for path in Path(str(store.local)).rglob("*"):
        if path.is_file():
            remote.write_bytes(str(path.relative_to(str(store.local))), path.read_bytes())
    make_report(store, RUN)
    assert not make_report(remote, RUN).reused
    assert make_report(remote, RUN).reused
    assert contents(remote) == contents(store)


def test_missing_runs_and_data_are_named(store: Store) -> None:
    with pytest.raises(RunError, match="holds no run"):
        make_report(store, "runs/other")
    store.delete("shards/code-00code")
    with pytest.raises(ArtifactError, match="shards/code-00code, an input of this run, is missing"):
        make_report(store, RUN)
    store.delete(f"{RUN}/final")
    with pytest.raises(RunError, match="has no final yet"):
        make_report(store, RUN)


def test_card_joins_the_model_and_leaves_the_rest_as_it_was(store: Store) -> None:
    before = final_manifest(store, RUN)
    make_report(store, RUN)
    after = final_manifest(store, RUN)
    assert [record.name for record in after.files] == ["README.md", "config.json", "model.safetensors"]
    assert after.model_copy(update={"files": after.files[1:]}) == before
    assert find_damage(store, f"{RUN}/final", after) == {}


def test_card_has_front_matter_and_code_that_compiles(store: Store) -> None:
    make_report(store, RUN)
    card = store.read_bytes(f"{RUN}/final/README.md").decode()
    _, matter, body = card.split("---\n", 2)
    read = yaml.safe_load(matter)
    (results,) = model_index_to_eval_results(read.pop("model-index"))[1:]
    assert [(each.metric_type, each.metric_value, each.dataset_split) for each in results][:1] == [
        ("loss", 4.25, "validation")
    ]
    assert read == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["headrace", "causal-lm", "gpt2"],
    }  # fmt: skip
    assert "| prose | 10 | 4,000 | 1 | 400 |" in body
    assert "| **All** | **4.250** | **70.1** | **1.533** | **99** | **396** | **7** |" in body
    assert "<i>" not in body
    compile(body.split("```python\n")[1].split("```")[0], "card", "exec")


def test_lineage_names_everything_behind_the_model(store: Store) -> None:
    report = make_report(store, RUN)
    lineage = read_sealed(store, f"{RUN}/lineage.json")
    config = digest_file(store.fetch(f"{RUN}/config.json"))
    assert lineage["run"]["config_sha256"] == config.sha256
    prose = lineage["shards"][0]
    assert (prose["corpus"], prose["source_files"], prose["source_pieces"]) == ("prose", 1, 2)
    assert prose["manifest_sha256"] == digest_file(store.fetch("shards/prose-00prose/manifest.json")).sha256
    assert prose["sources_sha256"] == digest_file(store.fetch(prose["sources"])).sha256
    assert lineage["tokenizer"]["trained_on"] == ["prose/prose.txt#0", "code/code.txt#1"]
    assert [file["name"] for file in lineage["model"]["files"]] == ["config.json", "model.safetensors"]
    assert lineage["report"]["fingerprint"] == report.fingerprint


KILLED_AT = """
import os, sys
from trainer.registry.report import make_report
from trainer.store.storage import Store
puts, put = 0, Store.put
def dying_put(self, path, key):
    global puts
    puts += 1
    if puts == {number}:
        os._exit(137)
    put(self, path, key)
Store.put = dying_put
make_report(Store({url!r}), {run!r})
assert "torch" not in sys.modules and "matplotlib.pyplot" not in sys.modules
"""


@pytest.mark.parametrize("number", once(1, 2, 3, 4, 5, 6, 7))
def test_model_is_intact_wherever_the_second_report_is_killed(store: Store, number: int) -> None:
    """The writes are the page, the manifest without the old card, the card, the manifest with it, the outcome, the
    lineage.
    """
    make_report(store, RUN)
    write_evaluation(store, 3.0)
    code = KILLED_AT.format(number=number, url=store.url, run=RUN)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == (137 if number <= 6 else 0)
    assert find_damage(store, f"{RUN}/final", final_manifest(store, RUN)) == {}

    assert make_report(store, RUN).reused == (number > 6)
    continued = contents(store)
    store.delete(f"{RUN}/lineage.json")
    make_report(store, RUN)
    assert contents(store) == continued

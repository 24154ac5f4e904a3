"""Measuring a checkpoint: any that can be named, on its own shards, once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.processes import cores
from tests.support import cpu_runtime, digests, held_out_losses, records, small_job, small_values
from tests.trainer.data.test_changed_raw import rot
from tests.trainer.made import prepare
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError, ConfigError, PipelineError, TokenizerError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.data.dataset import open_held_out
from trainer.data.shards import open_shards
from trainer.kinds.pretraining.measure import evaluate
from trainer.models.causal import load_model
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.records.evaluations import Result
from trainer.records.sealed import require_sealed
from trainer.store import checked_files
from trainer.store.manifest import make_manifest, write_manifest
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.identity import final_manifest


@pytest.fixture
def measured(finished: Finished, tmp_path: Path) -> Finished:
    """The finished run in a store of the test's own, not evaluated yet."""
    measured = finished.copy(tmp_path)
    (measured.folder / "eval.json").unlink()
    return measured


def measure(run: Finished, checkpoint: str, **changes: Any) -> Result:
    cpu_runtime()
    evaluation = {"prompts": ["def "], "new_tokens": 4, "batch": 8, **changes.pop("evaluation", {})}
    with cores(1):
        job = EvaluateJob(store=str(run.store), checkpoint=checkpoint, **{"evaluation": evaluation, **changes})
        return evaluate_checkpoint(job, silent())


def refused(run: Finished, checkpoint: str, kind: type[PipelineError], **changes: Any) -> str:
    before = digests(run.store)
    with pytest.raises(kind) as caught:
        measure(run, checkpoint, **changes)
    assert digests(run.store) == before
    return str(caught.value)


def test_a_runs_name_means_its_final_model_on_all_held_out_text(measured: Finished) -> None:
    result = measure(measured, measured.name)
    store = Store(str(measured.store))
    sets = [open_shards(store, key) for key in result.data]
    held_out = [open_held_out(store, s, 32, None) for s in sets]
    model = load_model(measured.folder / FINAL)
    assert (result.groups, result.total) == evaluate(model, held_out, 32, 8, cpu_runtime())
    assert result.total.counts["tokens"] == sum(length - 1 for s in sets for length in s.validation.lengths if length)
    assert (result.measured_on.context, result.reused) == (32, False)
    assert result.key == f"evaluations/{measured.folder.name}-{result.fingerprint}.json"
    assert [sample.prompt for sample in result.samples] == ["def "]
    assert Result(**require_sealed(store, result.key)) == result


def test_the_windows_of_the_last_evaluation_in_training_are_scored_the_same(measured: Finished) -> None:
    result = measure(measured, measured.name, evaluation={"max_windows": 4})
    assert result.total.counts["windows"] == 8
    assert result.total.figures["loss"] == pytest.approx(held_out_losses(measured.store)[-1][1], rel=1e-6)
    last = records(measured.store, "evaluation")[-1]
    assert result.total.figures["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=1e-6)
    assert result.total.counts["text_bytes"] == last["text_bytes"]
    by_corpus = {name: each.figures["bits_per_byte"] for name, each in result.groups.items()}
    assert by_corpus == pytest.approx(last["corpora_bits_per_byte"], rel=1e-6)


@pytest.mark.parametrize(
    "form", ["{run}/final", "{run}/checkpoints/step-00000064", "{run}/checkpoint-last", "{run}/checkpoint-best"]
)
def test_every_way_to_name_a_checkpoint_finds_it(measured: Finished, form: str) -> None:
    expected = measure(measured, measured.name)
    result = measure(measured, form.format(run=measured.run))
    assert (result.groups, result.total) == (expected.groups, expected.total)
    assert result.reused == ("final" in form), "by whichever name: what was measured is not measured again"
    if "final" not in form:
        assert result.key.startswith("evaluations/")
        assert result.samples == expected.samples


def test_a_pretrained_folder_is_measured_on_named_shards(measured: Finished, tmp_path: Path) -> None:
    expected = measure(measured, measured.name)
    folder = Path(shutil.copytree(measured.folder / FINAL, tmp_path / "elsewhere"))
    (folder / "manifest.json").unlink()
    result = measure(measured, str(folder), shards=expected.data, context=32)
    assert (result.groups, result.total) == (expected.groups, expected.total)
    message = refused(measured, str(folder), ConfigError)
    assert "set `shards` and `context`" in message


def test_a_measurement_that_was_made_is_reused_until_something_it_depends_on_changes(measured: Finished) -> None:
    first = measure(measured, measured.name)
    before = digests(measured.store)
    again = measure(measured, measured.name)
    assert again.reused
    assert again == first.model_copy(update={"reused": True})
    assert digests(measured.store) == before
    for changes in ({"evaluation": {"prompts": ["class "]}}, {"context": 16}, {"shards": first.data[:1]}):
        assert not measure(measured, measured.name, **changes).reused


def test_the_model_card_is_no_part_of_what_is_measured(measured: Finished) -> None:
    first = measure(measured, measured.name)
    assert (measured.folder / FINAL / "README.md").exists()
    store, key = Store(str(measured.store)), f"{measured.run}/{FINAL}"
    manifest = final_manifest(store, measured.run)
    assert manifest is not None
    others = [record for record in manifest.files if record.name != "README.md"]
    write_manifest(store, key, make_manifest(manifest.kind, manifest.fingerprint, others, manifest.details))
    again = measure(measured, measured.name)
    assert again.reused
    assert again.groups == first.groups


def test_a_missing_checkpoint_is_refused_by_name(measured: Finished) -> None:
    message = refused(measured, "nobody", ArtifactError)
    assert "no checkpoint 'nobody'" in message
    assert str(measured.store / "runs") in message


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_checkpoint_is_refused_by_its_file(measured: Finished, file: str) -> None:
    path = measured.folder / FINAL / file
    path.write_bytes(path.read_bytes()[:-1])
    message = refused(measured, measured.name, ArtifactError)
    assert str(path) in message
    assert "its manifest says" in message


def test_a_damaged_manifest_is_refused_by_name(measured: Finished) -> None:
    path = measured.folder / FINAL / "manifest.json"
    path.write_text("{")
    assert str(path) in refused(measured, measured.name, ArtifactError)


def test_missing_shards_are_refused_by_name(measured: Finished) -> None:
    message = refused(measured, measured.name, ArtifactError, shards=["shards/code-0000000000000000"])
    assert f"{measured.store}/shards/code-0000000000000000 holds no published shards" in message


def test_shards_of_another_tokenizer_are_refused(raw: Path, measured: Finished) -> None:
    other = prepare(small_job(raw, measured.store, data__tokenizer={"vocab_size": 300}).preparation(), silent())
    message = refused(measured, measured.name, TokenizerError, shards=[other.shards[0].key])
    assert "contains another tokenizer than tokenizers/bpe-" in message
    assert other.shards[0].key in message
    own = measure(measured, measured.name).data
    mixed = refused(measured, measured.name, TokenizerError, shards=[own[0], other.shards[1].key])
    assert "the shards were made with different tokenizers" in mixed


def test_a_tokenizer_in_other_files_is_compared_too(
    measured: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(measured.folder / FINAL, tmp_path / "elsewhere"))
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    for path in folder.glob("*token*"):
        path.unlink()
    on = {"shards": measure(measured, measured.name).data, "context": 32}
    assert measure(measured, str(folder), **on).total is not None and "contains no tokenizer" in caplog.text
    merges = "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    others = {token: len(model["vocab"]) - 1 - number for token, number in model["vocab"].items()}
    (folder / "vocab.json").write_text(json.dumps(others), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    assert "has another vocabulary than tokenizers/bpe-" in refused(measured, str(folder), TokenizerError, **on)


def test_shards_of_a_renamed_corpus_are_measured_beside_those_that_are_reused(raw: Path, measured: Finished) -> None:
    corpora = small_values(raw, measured.store)["data"]["corpora"]
    corpora[1]["name"] = "notes"
    renamed = prepare(small_job(raw, measured.store, data__corpora=corpora).preparation(), silent())
    own = measure(measured, measured.name)
    assert renamed.shards[0].key == own.data[0]
    store, keys = Store(str(measured.store)), [shards.key for shards in renamed.shards]
    assert len({open_shards(store, key).tokenizer for key in keys}) == 2
    assert measure(measured, measured.name, shards=keys).total == own.total


def test_a_model_with_fewer_embeddings_than_the_shards_have_ids_is_refused(measured: Finished, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shards = measure(measured, measured.name).data
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, n_positions=32, vocab_size=100)).save_pretrained(
        tmp_path / "small"
    )
    message = refused(measured, str(tmp_path / "small"), TokenizerError, shards=shards, context=32)
    assert "beyond the 100 embeddings" in message


def test_a_window_longer_than_the_models_positions_is_refused(measured: Finished) -> None:
    assert "32 positions" in refused(measured, measured.name, ConfigError, context=33)


def test_shards_without_held_out_text_are_refused(raw: Path, measured: Finished) -> None:
    nothing = prepare(small_job(raw, measured.store, data__validation_fraction=0.0).preparation(), silent())
    message = refused(measured, measured.name, ConfigError, shards=[ref.key for ref in nothing.shards])
    assert "hold no held-out text; prepare them with data.validation_fraction above 0" in message


@pytest.mark.parametrize("looked_at", [False, True], ids=["never measured on", "measured on before"])
def test_a_bit_that_flips_in_held_out_shards_is_refused_by_its_file(measured: Finished, looked_at: bool) -> None:
    shards = measure(measured, measured.name).data if looked_at else None
    path = next(measured.store.glob("shards/*/validation-00000.bin"))
    rot(path, path.stat().st_size // 2)
    with pytest.raises(ArtifactError) as caught:
        measure(measured, measured.name, context=16, shards=shards)
    assert f"{path} does not match its checksum" in str(caught.value)
    assert "prepare the data again to rebuild it from the raw files" in str(caught.value)


def test_of_held_out_shards_blocks_are_compared_and_no_file_is_read_whole(
    measured: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = checked_files.digest_bytes
    monkeypatch.setattr(checked_files, "digest_bytes", lambda path: (read.append(Path(path).name), digest(path))[1])
    measure(measured, measured.name)
    assert [each for each in read if "validation" in each or "shard" in each] == []


def test_a_damaged_tokenizer_of_the_shards_is_refused_by_its_file(measured: Finished) -> None:
    path = next(measured.store.glob("tokenizers/*/tokenizer.json"))
    rot(path, path.stat().st_size // 2)
    message = refused(measured, measured.name, TokenizerError)
    assert f"{path} does not match its checksum" in message
    assert "prepare the data again" in message

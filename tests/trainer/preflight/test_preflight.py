"""The look before the work: what it finds, what it refuses, and that it does nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import ROOT
from tests.hub import serve_model, unreachable
from tests.support import SMALL_MODEL, digests, flip_bit, small_job
from tests.trainer.made import prepare
from tests.trainer.small_jobs import Finished
from tests.trainer.small_tokenizers import byte_level_bpe, saved
from trainer.common.errors import ArtifactError, ConfigError, DeviceError, PipelineError, TokenizerError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.preflight import preflight
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.records.plans import PreparedData
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.runtime import check_devices, planned_ranks


def refused(job: PipelineJob, kind: type[PipelineError]) -> str:
    with pytest.raises(kind) as caught:
        preflight(job, silent())
    return str(caught.value)


def test_before_the_text_is_tokenized_counts_are_estimates(raw: Path, tmp_path: Path) -> None:
    found = preflight(small_job(raw, tmp_path / "store"), silent())
    assert found.plan is None
    code, docs = found.corpora
    assert (code.name, docs.name) == ("code", "docs")
    assert (code.files, docs.files) == (len(list((raw / "code").iterdir())), 1)
    assert docs.raw_bytes == (raw / "docs.jsonl").stat().st_size
    assert (code.tokens, code.documents) == (None, None)
    assert found.about_steps == 6
    assert found.about_windows == (code.raw_bytes // 4 + docs.raw_bytes // 4) // 32


def test_once_it_is_tokenized_counts_are_exact(raw: Path, stocked: Path, data: PreparedData) -> None:
    job = small_job(raw, stocked)
    found = preflight(job, silent())
    assert found.plan == make_plan(job.training, shard_manifests(Store(str(stocked)), data), 1)
    assert (found.about_windows, found.about_steps) == (found.plan.windows, found.plan.total_steps)
    for corpus, planned in zip(found.corpora, found.plan.corpora, strict=True):
        assert corpus.tokens == planned.tokens + planned.validation_tokens
    assert found.vocab_size == 384


def test_parameters_are_those_of_the_model_that_is_trained(raw: Path, stocked: Path, finished: Finished) -> None:
    from trainer.models.causal import load_model

    found = preflight(small_job(raw, stocked), silent())
    model = load_model(finished.store / finished.run / FINAL)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.about_memory_bytes > 16 * found.parameters
    assert found.about_disk_bytes > 12 * found.parameters


def test_nothing_is_left_behind_but_the_notes_about_raw_files_and_what_is_held(
    raw: Path, tmp_path: Path, stocked: Path
) -> None:
    preflight(small_job(raw, tmp_path / "new"), silent())
    assert digests(tmp_path / "new") == {}
    before = digests(stocked, "tokenizers", "shards")
    preflight(small_job(raw, stocked), silent())
    assert digests(stocked, "tokenizers", "shards") == before
    assert sorted(path.name for path in stocked.iterdir()) == [".staging", "cache", "pins", "shards", "tokenizers"]


def test_a_warm_up_beyond_the_epochs_is_refused_as_soon_as_their_steps_are_known(raw: Path, stocked: Path) -> None:
    job = small_job(raw, stocked, training__max_steps=None, training__epochs=1, training__warmup_steps=100_000)
    assert "training.warmup_steps is 100000, but the whole run has" in refused(job, ConfigError)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training__epochs": 1, "training__warmup_steps": 100_000}, "training.warmup_steps is 100000, but the whole"),
        (
            {"training__max_steps": 6, "training__early_stopping": 2},
            "training.early_stopping is 2, but the run is eval",
        ),
        ({"training__max_steps": 6, "training__early_stopping": 2, "training__evaluate_every": 1}, None),
    ],
)
def test_what_would_be_refused_after_tokenization_is_warned_of_before(
    raw: Path, tmp_path: Path, changes: dict[str, Any], told: str | None
) -> None:
    found = preflight(small_job(raw, tmp_path / "new", **{"training__max_steps": None, **changes}), silent())
    assert [f"the job will be refused after tokenization: {told}" in each for each in found.warnings] == [True] * (
        told is not None
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training__evaluate_every": 2}, "because training.evaluate_every needs held-out text"),
        ({"training__final": "best"}, "because training.final: best needs held-out text"),
        ({"training__evaluate_every": 2, "data__validation_fraction": 0.9}, None),
        ({}, None),
    ],
)
def test_files_too_few_to_hold_one_out_are_warned_of(tmp_path: Path, changes: dict[str, Any], told: str | None) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("a line of text\n" * 200)
    corpora = [{"name": "books", "paths": [f"{tmp_path}/*.txt"]}]
    found = preflight(small_job(tmp_path, tmp_path / "new", data__corpora=corpora, **changes), silent()).warnings
    assert [
        each.startswith("the corpora have about 4 documents (files or") and str(told) in each for each in found
    ] == [True] * (told is not None)


def test_once_text_is_held_out_few_files_are_not_warned_of(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"a line of text {number}\n" * 2000)
    changes: dict[str, Any] = {
        "training__evaluate_every": 2,
        "data__validation_fraction": 0.5,
        "data__tokenizer__vocab_size": 260,
    }
    corpora = [{"name": "books", "paths": [f"{tmp_path}/*.txt"]}]
    job = small_job(tmp_path, tmp_path / "store", data__corpora=corpora, **changes)
    (told,) = preflight(job, silent()).warnings
    assert "possibly none is held out" in told
    prepare(job, silent())
    found = preflight(job, silent())
    assert found.plan is not None and found.warnings == []


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or torch.cuda.is_available(), reason="asks for two ranks on the CPU"
)
def test_ranks_and_batch_are_looked_at_together(raw: Path, stocked: Path) -> None:
    job = small_job(raw, stocked, training__processes=2, training__global_batch=9)
    assert "9 does not divide among 2 ranks" in refused(job, ConfigError)
    found = preflight(small_job(raw, stocked, training__processes=2), silent())
    assert found.plan is not None
    assert (found.ranks, found.plan.micro_batch) == (2, 4)


def test_prompts_that_nothing_continues_without_held_out_text_are_warned_of(raw: Path, tmp_path: Path) -> None:
    job = small_job(raw, tmp_path / "store", data__validation_fraction=0, evaluation__prompts=[])
    assert preflight(job, silent()).warnings == []
    (told,) = preflight(small_job(raw, tmp_path / "store", data__validation_fraction=0), silent()).warnings
    assert "validation_fraction is 0: the model is not evaluated, and continues no evaluation.prompts" in told


def test_recomputed_activations_are_refused_for_a_model_whose_code_cannot(raw: Path, tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "dff": 64, "n_layer": 1, "n_head": 2}
    ctrl = small_job(raw, tmp_path / "store", model__config={"model_type": "ctrl", **sizes})
    preflight(ctrl, silent())
    checkpointing = ctrl.training.model_copy(update={"gradient_checkpointing": True})
    message = refused(ctrl.model_copy(update={"training": checkpointing}), ConfigError)
    assert "gradient_checkpointing is true, but transformers does not support it for a 'ctrl' model" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_devices_that_a_machine_lacks_are_refused() -> None:
    cores = len(os.sched_getaffinity(0))
    check_devices("fp32", cores)
    check_devices("bf16", None)
    with pytest.raises(DeviceError, match="fp16, but this machine has no GPU; use fp32 or bf16"):
        check_devices("fp16", None)
    with pytest.raises(
        DeviceError, match=f"the job asks for {cores + 1} processes, but this machine has {cores} cores"
    ):
        check_devices("fp32", cores + 1)
    assert planned_ranks(None) == 1
    assert planned_ranks(3) == 3


@pytest.fixture
def earlier(finished: Finished, tmp_path: Path) -> Path:
    """A model folder with its tokenizer, as an earlier run published it."""
    return Path(shutil.copytree(finished.store / finished.run / FINAL, tmp_path / "earlier"))


def continued(raw: Path, store: Path, earlier: Path, **changes: Any) -> PipelineJob:
    """A job that trains an earlier run's model further."""
    taken = {"path": str(earlier / "tokenizer.json")}
    return small_job(raw, store, **{"model": {"pretrained": str(earlier)}, "data__tokenizer": taken, **changes})


def test_an_earlier_runs_model_may_be_trained_further_with_its_tokenizer(
    raw: Path, tmp_path: Path, earlier: Path
) -> None:
    found = preflight(continued(raw, tmp_path / "store", earlier), silent())
    assert found.vocab_size == 384


def test_a_pretrained_model_whose_weights_are_cut_short_is_refused(raw: Path, tmp_path: Path, earlier: Path) -> None:
    weights = earlier / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    message = refused(continued(raw, tmp_path / "store", earlier), ConfigError)
    assert "model.safetensors is missing or damaged" in message
    assert "where its header describes" in message


def test_a_pretrained_model_of_the_hub_is_fetched_before_anything_is_prepared(
    raw: Path, finished: Finished, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    own = finished.run.removeprefix("runs/")
    job = continued(raw, finished.store, earlier, model={"pretrained": own}, data__validation_fraction=0.3)
    message = refused(job, ArtifactError)
    assert "hub does not provide it: no network; " in message
    assert message.endswith(f"; if {finished.run} of the store is meant, write {finished.run}")


def test_a_pretrained_model_with_another_tokenizer_is_refused_with_the_right_one(
    raw: Path, stocked: Path, earlier: Path, tmp_path: Path
) -> None:
    trained = continued(raw, stocked, earlier, data__tokenizer={"vocab_size": 300})
    other = prepare(trained.preparation(), silent()).tokenizer
    taken = {"path": f"{stocked}/{other.key}/tokenizer.json"}
    for job in (trained, continued(raw, tmp_path / "new", earlier, data__tokenizer=taken)):
        message = refused(job, TokenizerError)
        assert f"not that of the pretrained model '{earlier}'" in message
        assert f"set data.tokenizer.path to '{earlier / 'tokenizer.json'}'" in message


def test_a_pretrained_model_is_refused_with_a_tokenizer_that_is_still_to_be_trained(
    raw: Path, tmp_path: Path, earlier: Path
) -> None:
    message = refused(continued(raw, tmp_path / "store", earlier, data__tokenizer={"vocab_size": 300}), TokenizerError)
    assert (
        f"is not trained yet, so it is not that of the pretrained model '{earlier}'; set data.tokenizer.path" in message
    )


def test_a_pretrained_model_may_go_on_with_the_trained_tokenizer_that_it_had(
    raw: Path, stocked: Path, earlier: Path
) -> None:
    shutil.rmtree(stocked / "shards")
    found = preflight(continued(raw, stocked, earlier, data__tokenizer={"vocab_size": 384}), silent())
    assert (found.vocab_size, found.plan) == (384, None)


def test_a_pretrained_tokenizer_in_other_files_is_compared_as_well(raw: Path, tmp_path: Path, earlier: Path) -> None:
    path = earlier / "tokenizer.json"
    taken = {"path": str(shutil.copy(path, tmp_path / "taken.json")), "eos_token": END_OF_TEXT}
    model = json.loads(path.read_text())["model"]
    swapped = {**model["vocab"], "a": model["vocab"]["b"], "b": model["vocab"]["a"]}
    path.unlink()
    (earlier / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"])]))
    (earlier / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    job = continued(raw, tmp_path / "store", earlier, data__tokenizer=taken)
    (earlier / "vocab.json").write_text(json.dumps(model["vocab"]))
    assert preflight(job, silent()).vocab_size == 384
    (earlier / "vocab.json").write_text(json.dumps(swapped))
    message = refused(job, TokenizerError)
    assert f"vocabularies differ; set data.tokenizer.path to '{earlier}'" in message


def test_a_pretrained_model_without_a_tokenizer_is_refused(raw: Path, tmp_path: Path, earlier: Path) -> None:
    taken = {"path": str(shutil.copy(earlier / "tokenizer.json", tmp_path / "taken.json"))}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (earlier / name).unlink()
    message = refused(continued(raw, tmp_path / "store", earlier, data__tokenizer=taken), TokenizerError)
    assert f"cannot check whether the data's tokenizer is that of the pretrained model '{earlier}'" in message
    assert "put the files of the model's tokenizer into its folder" in message


@pytest.mark.deep
def test_a_pretrained_name_of_the_hub_is_compared_with_its_files_there(
    raw: Path, tmp_path: Path, earlier: Path
) -> None:
    jobs = [
        {"path": str(earlier / "tokenizer.json")},
        {"path": str(saved(byte_level_bpe(384), tmp_path / "tokenizer.json"))},
    ]
    look = (
        "import json, sys; from tests.support import small_job; from trainer.common.errors import PipelineError;"
        "from trainer.kinds.pretraining.preflight import preflight; from trainer.common.progress import silent\n"
        "for tokenizer in json.loads(sys.argv[3]):\n"
        "    job = small_job(sys.argv[1], sys.argv[2], model={'pretrained': 'someone/words'}, "
        "data__tokenizer=tokenizer)\n    try:\n        print(preflight(job, silent()).vocab_size)\n"
        "    except PipelineError as error:\n        print(error)\n"
    )
    with serve_model(earlier, "someone/words", "1" * 40) as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub")}
        command = [sys.executable, "-c", look, str(raw), str(tmp_path / "store"), json.dumps(jobs)]
        said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    same, other = said.stdout.splitlines()
    assert same == "384"
    assert "not that of the pretrained model 'someone/words': their vocabularies differ" in other
    assert "set data.tokenizer.path to 'someone/words'" in other


@pytest.mark.deep
def test_other_weights_of_a_name_of_the_hub_make_another_run(raw: Path, tmp_path: Path, earlier: Path) -> None:
    values = {"model": {"pretrained": "someone/words"}}
    values["data__tokenizer"] = {"path": str(shutil.copy(earlier / "tokenizer.json", tmp_path / "taken.json"))}
    prepare(small_job(raw, tmp_path / "store", **values).preparation(), silent())
    look = (
        "import json, sys; from tests.support import small_job\n"
        "from trainer.kinds.pretraining.kind import find_prepared, identify\n"
        "job = small_job(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))\n"
        "print(identify(job, find_prepared(job.preparation())).key)"
    )
    named = []
    for commit in ("1", "2", "3"):
        if commit == "3":
            flip_bit(earlier / "model.safetensors", -8)
        with serve_model(earlier, "someone/words", commit * 40) as address:
            env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub")}
            command = [sys.executable, "-c", look, str(raw), str(tmp_path / "store"), json.dumps(values)]
            named.append(subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert named[0] == named[1] != named[2]


@pytest.mark.deep
def test_a_repository_of_the_hub_that_changes_is_loaded_as_it_was_when_it_named_the_run(
    raw: Path, tmp_path: Path, earlier: Path
) -> None:
    newer = Path(shutil.copytree(earlier, tmp_path / "newer"))
    flip_bit(newer / "model.safetensors", -8)
    job = continued(raw, tmp_path / "store", earlier, model={"pretrained": "someone/words"})
    prepare(job.preparation(), silent())
    look = (
        "import sys\n"
        "from trainer.config.jobs import PipelineJob\n"
        "from trainer.kinds.pretraining.kind import find_prepared, identify\n"
        "from trainer.kinds.pretraining.workload import Pretraining\n"
        "from trainer.models.pretrained import find_model\n"
        "from trainer.store.storage import Store\n"
        "job = PipelineJob.model_validate_json(sys.argv[1])\n"
        "data, store = find_prepared(job.preparation()), Store(job.store)\n"
        "print(identify(job, data).identity['model']['pretrained']['model.safetensors'])\n"
        "Pretraining(job, store, data, 1).load_model(None).save_pretrained(sys.argv[2])\n"
        "print(find_model(store, 'someone/words', hub=True).files['model.safetensors'])\n"
    )
    with serve_model(earlier, "someone/words", "1" * 40, changed=(newer, "2" * 40)) as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", look, job.model_dump_json(), str(tmp_path / "loaded")]
        said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == [digests(earlier)["model.safetensors"]] * 2
    loaded, named = (load_file(folder / "model.safetensors") for folder in (tmp_path / "loaded", earlier))
    assert loaded.keys() == named.keys() and all(torch.equal(loaded[key], named[key]) for key in named)


def test_a_tokenizer_to_train_larger_than_the_models_vocabulary_is_refused(raw: Path, tmp_path: Path) -> None:
    job = small_job(raw, tmp_path / "store", model__config={**SMALL_MODEL, "vocab_size": 300})
    assert "the tokenizer's largest id is 383, but the model has 300 embeddings" in refused(job, TokenizerError)

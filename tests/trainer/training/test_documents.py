"""Attention within documents: losses are those of the documents by themselves, in training as in evaluation."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support import SMALL_MODEL, cpu_runtime, only_run, records, small_values, write_config
from tests.tiny_models import tiny_config
from tests.trainer.short_texts import open_work, short_job, short_values
from tests.trainer.training.sharded_runs import finish, start
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import document_positions
from trainer.data.shards import open_shards
from trainer.kinds.kind import kind_of
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.basis import why_incomparable
from trainer.records.plans import PreparedData
from trainer.store.storage import Store
from trainer.training.identity import data_keys

MASK = {"training__document_mask": True}
LLAMA = {**tiny_config("llama"), "max_position_embeddings": 32}


def end_id(job: PipelineJob, data: PreparedData) -> int:
    found: int = open_shards(Store(job.store), data.shards[0].key).details["eos_id"]
    return found


def alone(model: PreTrainedModel, ids: torch.Tensor, end: int) -> list[torch.Tensor]:
    """The losses of the documents of a row, each read by itself."""
    after = (ids == end).nonzero().flatten() + 1
    parts = torch.tensor_split(ids, after[after < len(ids)])
    logits = [model(input_ids=part[None]).logits[0, :-1] for part in parts]
    return [F.cross_entropy(each, part[1:], reduction="sum") for each, part in zip(logits, parts, strict=True)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_losses_are_those_of_the_documents_alone(
    texts: Path, made: tuple[Path, PreparedData], family: str, attention: str
) -> None:
    config = LLAMA if family == "llama" else short_job(texts, made[0]).model.config
    job = short_job(texts, made[0], **MASK, model__config=config, model__attention=attention)
    work = open_work(job, made[1])
    model = work.load_model(None)
    objective = work.make_objective(model)
    batch = work.read_batch(0, 0)
    (inputs,) = batch.micro_batches
    losses = [loss for row in inputs["input_ids"] for loss in alone(model, row, end_id(job, made[1]))]
    alone_losses = sum(float(loss.detach()) for loss in losses)
    assert len(losses) > 2 * len(inputs["input_ids"]), "windows hold several documents"
    assert float(objective(**inputs).detach()) == pytest.approx(alone_losses, rel=1e-5)
    plain = objective(input_ids=inputs["input_ids"], labels=inputs["labels"])
    assert abs(float(plain.detach()) - alone_losses) > 1e-2, "without positions documents see each other"
    assert batch.targets == int((inputs["labels"][:, 1:] != -100).sum())


@torch.no_grad()
def test_a_compiled_model_masks_as_well(texts: Path, made: tuple[Path, PreparedData]) -> None:
    work = open_work(short_job(texts, made[0], **MASK), made[1])
    model = work.load_model(None).eval()
    (inputs,) = work.read_batch(0, 0).micro_batches
    ids, positions = inputs["input_ids"], inputs["position_ids"]
    expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    assert torch.allclose(compiled(input_ids=ids, position_ids=positions, use_cache=False).logits, expected, atol=1e-5)
    one_text = torch.arange(ids.shape[1]).expand_as(ids)
    seen = model(input_ids=ids, position_ids=one_text, use_cache=False).logits
    assert not torch.allclose(seen, expected, atol=1e-3)


def test_positions_begin_anew_after_each_end_token() -> None:
    assert document_positions(np.array([5, 0, 0, 7, 8, 0]), 0).tolist() == [0, 1, 0, 0, 1, 2]
    assert document_positions(np.array([0, 5, 5]), 0).tolist() == [0, 0, 1]


def test_held_out_text_is_measured_document_by_document(
    texts: Path, store: Path, made: tuple[Path, PreparedData]
) -> None:
    """Of a window there is what a document has of it: the tokens before the window are not seen, as without a mask."""
    cpu_runtime()
    data = made[1]
    jobs = [short_job(texts, store, evaluation__during_training=None, **more) for more in (MASK, {})]
    runs = [train(job, silent(), data).key for job in jobs]
    assert runs[0] != runs[1]
    found = [evaluate_run(job, run, silent(), data_keys(data)) for job, run in zip(jobs, runs, strict=True)]
    last = records(store, "evaluation", runs[0])[-1]
    total = found[0].total
    assert {name: last[name] for name in ("loss", "bits_per_byte")} == pytest.approx(
        {name: total.figures[name] for name in ("loss", "bits_per_byte")}
    )
    model = AutoModelForCausalLM.from_pretrained(store / runs[0] / "final").eval()
    losses, tokens = [], 0
    with torch.no_grad():
        for ref in data.shards:
            held_out = open_shards(Store(str(store)), ref.key).validation
            for number, length in enumerate(held_out.lengths):
                for start in range(0, length - 1, 31):
                    window = torch.from_numpy(held_out.read(number, start, start + 32).astype(np.int64))
                    losses += [float(loss) for loss in alone(model, window, end_id(jobs[0], data))]
                    tokens += len(window) - 1 - int((window[:-1] == end_id(jobs[0], data)).sum())
    assert total.counts["tokens"] == tokens
    assert total.figures["loss"] == pytest.approx(math.fsum(losses) / tokens, rel=1e-5)
    assert all(total.counts[name] < found[1].total.counts[name] for name in ("tokens", "text_bytes"))
    assert "document_mask" not in (store / runs[1] / "eval.json").read_text()
    differences = why_incomparable("bits_per_byte", found[0].measured_on, found[1].measured_on)
    assert differences == ["document mask: on here, none there"], "the tokenizer is the same"
    again = evaluate_run(jobs[0], runs[0], silent(), data_keys(data))
    assert again.reused and again.groups == found[0].groups


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (
            "mamba",
            r"a 'mamba' model accepts no positions, so documents cannot share a window; set training.document",
        ),
        ("bloom", r"a 'bloom' model accepts no positions"),
        ("zamba2", r"though positions restart: documents would see each other; set training.document_mask to false"),
    ],
)
def test_families_that_carry_a_state_on_are_refused_before_training(
    texts: Path, made: tuple[Path, PreparedData], family: str, said: str
) -> None:
    job = short_job(texts, made[0], **MASK, model__config=tiny_config(family), evaluation__prompts=[])
    with pytest.raises(ConfigError, match=said):
        kind_of(job).preflight(job, silent())


def test_the_preflight_takes_what_is_right(texts: Path, made: tuple[Path, PreparedData]) -> None:
    job = short_job(texts, made[0], **MASK, model__config=SMALL_MODEL)
    assert kind_of(job).preflight(job, silent()).plan == open_work(job, made[1]).plan


@pytest.mark.slow
def test_a_model_divided_between_ranks_is_trained_under_a_mask_in_half_precision(
    texts: Path, store: Path, tmp_path: Path
) -> None:
    """With weights as large as trained ones: the logits of a text alone and in a window are rounded to 2e-2 from each
    other.
    """
    values = small_values(texts, store, **short_values(texts), **MASK, training__max_steps=2, training__context=24)
    values["model"]["config"] = {**LLAMA, "initializer_range": 0.3}
    values["training"] |= {"sharding": "fsdp", "precision": "bf16"}
    config = write_config(tmp_path / "job.yaml", values)
    finish(tmp_path / "said", config, store, 2)
    assert [record["step"] for record in records(store, "train", only_run(store))][-1] == 2


@pytest.mark.slow
def test_one_that_sees_the_text_before_is_refused_on_every_rank(texts: Path, store: Path, tmp_path: Path) -> None:
    values = small_values(texts, store, **short_values(texts), **MASK, training__max_steps=2)
    values["model"]["config"] = tiny_config("falcon")
    values["training"] |= {"sharding": "fsdp", "precision": "bf16"}
    ranks = start(tmp_path / "said", 2, write_config(tmp_path / "job.yaml", values), f"store={store}")
    ended = [rank.wait() for rank in ranks]
    assert [each.status for each in ended] == [2, 2], ended
    assert "documents would see each other; set training.document_mask to false" in ended[0].stderr

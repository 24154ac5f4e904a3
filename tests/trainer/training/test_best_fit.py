"""Whole documents packed into windows: each once an epoch, read as by themselves, whatever the ranks and the
interruptions.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from tests.support import SMALL_MODEL, cpu_runtime, curve, final_bytes, forget_after, rate_at, records
from tests.trainer.data.test_packing import best_fit
from tests.trainer.made import prepare
from tests.trainer.plain_loops import small_adamw, train_plainly
from tests.trainer.short_texts import open_work, read_documents, rows_of, short_job
from trainer.common.errors import ArtifactError
from trainer.common.progress import silent
from trainer.data.dataset import open_dataset
from trainer.kinds.kind import kind_of
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.plans import PreparedData
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.identity import data_keys

STEPS = 20
CONTEXT = 32
PACKED = {"training__packing": "best_fit", "training__max_steps": STEPS, "training__learning_rate": 3e-3}
Row = tuple[list[int], list[int], list[int]]


def train_here(texts: Path, store: Path, data: PreparedData, **changes: Any) -> str:
    cpu_runtime()
    return train(short_job(texts, store, **{**PACKED, **changes}), silent(), data).key


def documents_of(row: Row, end: int) -> list[tuple[int, ...]]:
    """The documents of a window, or pieces of them; not what fills it up, which is at its end and of end tokens
    alone.
    """
    ids, labels, positions = (np.array(each) for each in row)
    begins = np.flatnonzero(positions == 0)
    parts = [tuple(part.tolist()) for part in np.split(ids, begins[1:])]
    targets = np.split(labels, begins[1:])
    while parts and set(parts[-1]) == {end} and (targets[-1] == -100).all():
        parts.pop()
        targets.pop()
    for part, told in zip(parts, targets, strict=True):
        assert told.tolist() == [-100, *part[1:]]
    return parts


def plain_windows(documents: list[list[int]]) -> list[list[tuple[int, ...]]]:
    """The windows of a shard, as the books pack."""
    pieces = [tuple(each[start : start + CONTEXT]) for each in documents for start in range(0, len(each), CONTEXT)]
    return [[pieces[piece] for piece in window] for window in best_fit([len(piece) for piece in pieces], CONTEXT)]


def test_every_token_of_every_document_is_read_once_an_epoch(texts: Path, made: tuple[Path, PreparedData]) -> None:
    store, data = Store(str(made[0])), made[1]
    for ref in data.shards:
        job = short_job(texts, made[0], **PACKED)
        work = open_work(job, data.model_copy(update={"shards": [ref]}))
        shards = read_documents(store, ref.key)
        end = shards[0][0][-1]
        expected = [window for documents in shards for window in plain_windows(documents)]
        (corpus,) = work.plan.corpora
        assert (work.plan.windows, corpus.unused_tokens) == (len(expected), 0)
        assert work.plan.fill == pytest.approx(corpus.tokens / (CONTEXT * len(expected)))
        size = job.training.global_batch
        for epoch in (0, 1):
            numbers = range(epoch * len(expected) // size, -(-(epoch + 1) * len(expected) // size))
            read = [row for number in numbers for row in rows_of(work.read_batch(number, 0))]
            read = read[epoch * len(expected) - numbers[0] * size :][: len(expected)]
            found = Counter(tuple(documents_of(row, end)) for row in read)
            # A document of nothing but its end token cannot be told from what fills a window up.
            assert found == Counter(tuple(part for part in window if part != (end,)) for window in expected)
        batch = work.read_batch(0, 0)
        assert batch.targets == sum(label != -100 for _, labels, _ in rows_of(batch) for label in labels)
        assert 0 < batch.tokens <= size * CONTEXT


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("changes", [{**PACKED, "training__locality": 1}, {"training__document_mask": True}])
def test_the_ranks_shares_together_are_the_batch_of_one(
    texts: Path, made: tuple[Path, PreparedData], changes: dict[str, Any], ranks: int
) -> None:
    job = short_job(texts, made[0], **changes)
    whole, divided = open_work(job, made[1]), open_work(job, made[1], ranks)
    for number in (0, 7, 1000):
        expected = whole.read_batch(number, 0)
        shares = [divided.read_batch(number, rank) for rank in range(ranks)]
        assert {(share.targets, share.tokens) for share in shares} == {(expected.targets, expected.tokens)}
        assert [row for share in shares for row in rows_of(share)] == rows_of(expected)


def test_a_model_is_trained_as_in_a_plain_loop_over_the_documents(
    texts: Path, store: Path, made: tuple[Path, PreparedData]
) -> None:
    data = made[1]
    run = train_here(texts, store, data)
    work = open_work(short_job(texts, store, **PACKED), data)
    model = work.load_model(None)
    end = read_documents(Store(str(store)), data.shards[0].key)[0][0][-1]

    def loss_at(step: int) -> torch.Tensor:
        documents = [torch.tensor(each) for row in rows_of(work.read_batch(step, 0)) for each in documents_of(row, end)]
        logits = torch.cat([model(input_ids=each[None]).logits[0, :-1] for each in documents])
        return F.cross_entropy(logits, torch.cat([each[1:] for each in documents]))

    weights = list(model.parameters())
    optimizer = small_adamw([p for p in weights if p.ndim >= 2], [p for p in weights if p.ndim < 2])
    schedule = LambdaLR(optimizer, lambda step: rate_at(step, STEPS))
    losses = train_plainly(optimizer, schedule, map(loss_at, range(STEPS)))
    assert [loss for _, loss, _, _ in curve(store)] == pytest.approx(losses, abs=1e-4)
    assert losses[-1] < losses[0] - 0.3, "it learns"
    plan = json.loads((store / run / "plan.json").read_text())
    assert 0.8 < plan["fill"] < 1 and plan["tokens_per_step"] < 8 * CONTEXT
    page = Store(str(store)).read_bytes(make_report(Store(str(store)), run).key).decode()
    assert "packed with whole documents, 9" in page and "attention within documents" in page


def test_a_run_that_goes_on_ends_with_the_same_bytes(
    texts: Path, store: Path, made: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    changes = {
        "training__max_steps": 6,
        "training__save_every": 2,
        "training__keep_last": 9,
        "model__config": SMALL_MODEL,
    }
    run = train_here(texts, store, made[1], **changes)
    other = Path(shutil.copytree(store, tmp_path / "other"))
    forget_after(other / run, 2)
    (packed := next((other / "cache").glob("packed-*.json"))).write_text("{")
    assert train_here(texts, other, made[1], **changes) == run
    assert (final_bytes(other), curve(other)) == (final_bytes(store), curve(store))
    assert json.loads(packed.read_text())["windows"], "counted again"


def test_it_is_measured_with_the_same_mask(texts: Path, store: Path, made: tuple[Path, PreparedData]) -> None:
    run = train_here(texts, store, made[1], training__max_steps=2, evaluation__during_training=None)
    job = short_job(texts, store, **{**PACKED, "training__max_steps": 2}, evaluation__during_training=None)
    found = evaluate_run(job, run, silent(), data_keys(made[1]))
    assert found.measured_on is not None and found.measured_on.document_mask
    assert records(store, "evaluation", run)[-1]["loss"] == pytest.approx(found.total.figures["loss"])


def test_without_the_mask_a_packed_window_is_one_text(texts: Path, made: tuple[Path, PreparedData]) -> None:
    job = short_job(texts, made[0], **PACKED, training__document_mask=False)
    batch, masked = (open_work(each, made[1]).read_batch(0, 0) for each in (job, short_job(texts, made[0], **PACKED)))
    (inputs,), (other,) = batch.micro_batches, masked.micro_batches
    assert inputs.keys() == {"input_ids", "labels"} and torch.equal(inputs["input_ids"], other["input_ids"])
    read = inputs["labels"] != -100
    assert (
        torch.equal(inputs["labels"][read], inputs["input_ids"][read])
        and int(read.sum()) == batch.tokens == masked.tokens
    )
    assert batch.targets == batch.tokens - len(read) > masked.targets


def test_shards_are_let_go_of_when_others_come(texts: Path, store: Path) -> None:
    job = short_job(texts, store, **PACKED, training__locality=1, data__shards={"num_shards": 6, "piece_bytes": 1024})
    data = prepare(job.preparation(), silent())
    work = open_work(job, data)
    dataset = open_dataset(Store(job.store), data, job.training, work.plan, None)
    seen = set()
    for start in range(0, dataset.order._corpora[0]._size, 4):  # the first corpus, by itself
        turns = np.arange(start, start + 4, dtype=np.uint64)
        order, windows = dataset.order._corpora[0], dataset.windows[0]
        numbers = order.windows(turns)
        windows.prepare(numbers, order.shards(int(turns[0]), int(turns[-1])))
        windows.count(numbers)
        held = set(windows._packed)  # type: ignore[attr-defined]
        assert len(held) <= 3
        seen |= held
    assert len(seen) == 6


def test_another_packing_makes_another_run_and_none_the_same_as_before(
    texts: Path, made: tuple[Path, PreparedData]
) -> None:
    jobs = [short_job(texts, made[0], **more) for more in ({}, PACKED, {**PACKED, "training__document_mask": False})]
    settings = [kind_of(job).identify(job, made[1]).identity["training"] for job in jobs]
    told = [{name: each[name] for name in ("packing", "document_mask") if name in each} for each in settings]
    assert told == [{}, {"packing": {"best_fit": 1}, "document_mask": True}, {"packing": {"best_fit": 1}}]


def test_a_damaged_index_is_refused_with_what_repairs_it(
    texts: Path, store: Path, made: tuple[Path, PreparedData]
) -> None:
    index = store / made[1].shards[0].key / "shard-00000.idx"
    index.write_bytes(index.read_bytes()[:-8] + bytes(8))
    job = short_job(texts, store, **PACKED, training__seed=5)
    shutil.rmtree(store / "cache")
    with pytest.raises(ArtifactError, match=r"shard-00000.idx does not match its checksum"):
        open_work(job, made[1])
    assert prepare(job.preparation(), silent()).shards[0].key == made[1].shards[0].key
    assert open_work(job, made[1]).plan.windows > 0

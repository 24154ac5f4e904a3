"""Runs on conversations as the commands see them, and conversations from files of other forms."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.depth import once
from tests.processes import cores, start_warm
from tests.support import cpu_runtime, only_run, read_rows, write_config, write_rows
from tests.trainer.chats import CHATML, END, MARKED, START, chat_job, chat_model, chat_values
from tests.trainer.made import encode_conversations
from tests.trainer.small_jobs import Finished
from tests.trainer.small_tokenizers import byte_level_bpe, word_piece
from trainer.common.errors import ConfigError, CorpusError, TokenizerError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.data.chat.encoded import open_chat
from trainer.kinds.chat.kind import KIND
from trainer.kinds.chat.workload import Chat
from trainer.models.attention_masks import WITHOUT_MASKS
from trainer.models.documents import APART
from trainer.models.trial import tried_loss
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.pipelines.explain import explain_job
from trainer.records.basis import ExamplesBasis, answers_basis, why_incomparable
from trainer.records.sealed import read_sealed
from trainer.store.storage import Store
from trainer.training.compiling import compile_objective
from trainer.training.identity import data_keys
from trainer.training.metrics_reader import read_records


@pytest.mark.deep
def test_a_champion_whose_windows_may_not_be_shared_is_measured_as_it_would_measure_itself(
    answering: Finished, chats: Path, tmp_path: Path
) -> None:
    packed = answering.copy(tmp_path).job()
    carries = chat_model(tmp_path / "mamba", "mamba", initializer_range=0.5)
    alone = chat_job(chats, packed.store, carries, training__epochs=1, data__packing=False)
    with cores(1):
        encoded = encode_conversations(alone, silent())
        champion = train(alone, silent(), encoded).key
        own = evaluate_run(alone, champion, silent(), data_keys(encoded))
        found = evaluate_run(packed, answering.run, silent(), other=champion)
    assert found.groups["validation"].figures["loss"] == pytest.approx(
        own.groups["validation"].figures["loss"], abs=1e-5
    )


def test_bits_a_byte_of_answers_are_compared_between_tokenizers_that_keep_their_text(
    chats: Path, llama: Path, tmp_path: Path
) -> None:
    def basis(tokenizer: Tokenizer, **settings: Any) -> ExamplesBasis:
        folder = Path(shutil.copytree(llama, tmp_path / "models" / str(next(numbers))))
        made = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="[SEP]", additional_special_tokens=[START, END]
        )
        made.chat_template = CHATML
        made.save_pretrained(folder)
        job = chat_job(chats, tmp_path / "store", folder, **settings)
        details = Store(job.store).read_bytes(f"{encode_conversations(job, silent()).key}/manifest.json")
        return answers_basis(json.loads(details)["details"], job.data.model_dump(), "validation", "fp32")

    numbers = itertools.count()
    one, other = basis(byte_level_bpe()), basis(byte_level_bpe(400))
    cut, lossy = basis(byte_level_bpe(), data__context=100), basis(word_piece())
    assert not why_incomparable("bits_per_byte", one, other) and why_incomparable("loss", one, other)
    for each in (cut, lossy):
        assert why_incomparable("bits_per_byte", one, each) and not why_incomparable("bits_per_byte", each, each)


def test_another_test_file_has_it_measured_anew_and_more_epochs_have_it_trained(
    answering: Finished, chats: Path, tmp_path: Path
) -> None:
    other = write_rows(tmp_path / "other.jsonl", read_rows(chats / "test.jsonl")[:3])
    stages = explain_job(answering.job(data__test=[other]))
    assert [stage.verdict for stage in stages] == ["made", "reused", "made", "depends"]
    longer = explain_job(answering.job(training__epochs=3))
    assert [stage.verdict for stage in longer] == ["reused", "made", "depends", "depends"]


def test_text_is_what_else_it_can_be_measured_on(answering: Finished) -> None:
    with pytest.raises(ConfigError, match=r"belongs to a run of instruction tuning: .* are in that run's eval\.json"):
        evaluate_checkpoint(
            EvaluateJob(store=str(answering.store), checkpoint=answering.run.removeprefix("runs/")), silent()
        )


def test_the_dry_run_tells_conversations_and_windows(answering: Finished, chats: Path, tmp_path: Path) -> None:
    before = KIND.preflight(answering.job(store=str(tmp_path / "store")), silent())
    assert before.plan is None and before.splits == {
        split: len(read_rows(chats / f"{split}.jsonl")) for split in before.splits
    }
    after = KIND.preflight(answering.job(), silent())
    assert after.splits == before.splits and after.plan is not None
    assert after.lengths == before.lengths and after.lengths["train"].longest <= 256 == after.lengths["train"].most
    assert any(line.startswith("steps") and "windows each, on 1 rank" in line for line in after.lines())


@pytest.mark.parametrize("source", ["parquet", "disk", "hub"])
def test_other_sources_give_the_same_tokens(
    chats: Path, llama: Path, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_messages(row: dict[str, Any]) -> dict[str, Any]:
        pair = [{"role": "user", "content": row.get("prompt")}, {"role": "assistant", "content": row.get("completion")}]
        return {"messages": row.get("messages") or pair, "source": "x"}

    rows = {
        split: [as_messages(row) for row in read_rows(chats / f"{split}.jsonl")]
        for split in ("train", "validation", "test")
    }
    changes: dict[str, Any] = {"data__source": source}
    loaded = datasets.DatasetDict({split: datasets.Dataset.from_list(each) for split, each in rows.items()})
    if source == "parquet":
        for split, each in rows.items():
            pq.write_table(pa.Table.from_pylist(each), tmp_path / f"{split}.parquet")
            changes[f"data__{split}"] = [str(tmp_path / f"{split}.parquet")]
    else:
        loaded.save_to_disk(str(tmp_path / "set"))
        monkeypatch.setattr(datasets, "load_dataset", lambda path, subset, **_: loaded)
        changes |= {f"data__{split}": [split] for split in rows} | {"data__path": str(tmp_path / "set")}
    expected, found = (
        open_chat(store, encode_conversations(job, silent()).key)
        for job in (chat_job(chats, tmp_path / "store", llama), chat_job(chats, tmp_path / "store", llama, **changes))
        for store in [Store(job.store)]
    )
    for split, each in expected.splits.items():
        for example in range(len(each)):
            for one, other in zip(each.read(example), found.splits[split].read(example), strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_is_too_long_is_counted_and_left_out_without_an_answer(
    chats: Path, llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = [{"prompt": "why " * 200, "completion": "so"}, {"prompt": "why", "completion": "so " * 400}]
    path = write_rows(tmp_path / "long.jsonl", [*long, *read_rows(chats / "train.jsonl")[:3]])
    job = chat_job(chats, tmp_path / "store", llama, data__train=[path])
    found = open_chat(Store(job.store), encode_conversations(job, silent()).key)
    counts = found.details["splits"]["train"]
    assert (counts["truncated"], counts["unanswered"], counts["examples"]) == (2, 1, 4)
    assert counts["longest"] == 256 and len(found.splits["train"]) == 4
    assert (
        "train split: conversations longer than data.context, whose end was cut off: 2; left out because" in caplog.text
    )


def test_answers_that_the_template_leaves_unmarked_are_told(
    chats: Path, llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [{"role": role, "content": "so"} for role in ("user", "assistant", "user", "assistant")]
    path = write_rows(tmp_path / "turns.jsonl", [{"messages": turns}] * 3)
    last = MARKED.replace("== 'assistant' %}", "== 'assistant' and loop.last %}")
    job = chat_job(chats, tmp_path / "store", llama, data__train=[path], data__chat_template=last)
    found = open_chat(Store(job.store), encode_conversations(job, silent()).key)
    assert found.details["splits"]["train"]["unmarked"] == 3
    assert (
        "train split: answers that the chat template does not mark with {% generation %}, so they are not learnt: 3"
        in caplog.text
    )


def test_validation_is_cut_by_the_question(chats: Path, llama: Path, tmp_path: Path) -> None:
    """Two answers to one question are on the same side."""
    rows = [{"prompt": f"{number}?", "completion": answer} for number in range(40) for answer in ("yes", "no")]
    path = write_rows(tmp_path / "all.jsonl", rows)
    changes = {"data__train": [path], "data__validation": None, "data__test": None, "data__validation_fraction": 0.3}
    job = chat_job(chats, tmp_path / "store", llama, **changes)
    found = open_chat(Store(job.store), encode_conversations(job, silent()).key)
    sizes = {split: len(each) for split, each in found.splits.items()}
    assert sizes["train"] + sizes["validation"] == 80 and sizes["validation"] % 2 == 0 and 4 < sizes["validation"] < 50
    assert found.details["splits"]["validation"]["in_train"] == 0


def test_questions_of_held_out_splits_that_are_learnt_too_are_told(
    chats: Path, llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rows(numbers: range) -> list[dict[str, str]]:
        return [{"prompt": f"{number}?", "completion": "yes"} for number in numbers]

    numbers = {"train": range(12), "validation": range(10, 14), "test": range(9, 14)}
    paths = {f"data__{split}": [write_rows(tmp_path / f"{split}.jsonl", rows(each))] for split, each in numbers.items()}
    job = chat_job(chats, tmp_path / "store", llama, **paths)
    details = open_chat(Store(job.store), encode_conversations(job, silent()).key).details
    assert {split: each.get("in_train") for split, each in details["splits"].items()} == {
        "train": None, "validation": 2, "test": 3,
    }  # fmt: skip
    assert "3 of 5 test questions are also in train, so metrics on test are too optimistic" in caplog.text


def test_a_table_without_conversations_is_refused(chats: Path, llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": ["a"], "id": [1]}), path)
    job = chat_job(chats, tmp_path / "store", llama, data__source="parquet", data__train=[str(path)])
    with pytest.raises(
        CorpusError, match=r"other\.parquet has none of the columns messages, prompt, completion; it has text, id"
    ):
        encode_conversations(job, silent())


def test_an_empty_split_and_a_model_with_too_few_embeddings_are_refused(
    chats: Path, llama: Path, tmp_path: Path
) -> None:
    job = chat_job(chats, tmp_path / "store", llama, data__context=4)
    with pytest.raises(CorpusError, match=r"the train split is empty \(0 bad records, \d+ whose answers are beyond"):
        encode_conversations(job, silent())
    small = chat_model(tmp_path / "small", vocab_size=500)
    with pytest.raises(TokenizerError, match="has ids up to 501, but the model has 500 embeddings"):
        KIND.preflight(chat_job(chats, tmp_path / "store", small), silent())


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own compiler
def test_packed_rows_stay_apart_when_they_are_compiled(chats: Path, llama: Path, tmp_path: Path) -> None:
    job = chat_job(chats, tmp_path / "store", llama)
    work = Chat(job, Store(job.store), encode_conversations(job, silent()), 1)
    batch = work.read_batch(0, 0)
    plain = batch._replace(micro_batches=[{"input_ids": batch.micro_batches[0]["input_ids"]}])
    context, found = job.data.context or 0, []
    with torch.compiler.set_stance("force_eager"):
        for make, read in ((work.make_objective, batch), (lambda model: tried_loss(model, context), plain)):
            learner = work.load_model(None)
            compile_objective(make(learner), learner, cpu_runtime(), read)
            found.append(learner.config._attn_implementation)
    assert found == [APART, WITHOUT_MASKS]


@pytest.mark.slow
@pytest.mark.parametrize("publish", once("merged", "adapter"))
def test_an_adapter_learns_to_answer(chats: Path, llama: Path, tmp_path: Path, publish: str) -> None:
    store = tmp_path / "store"
    lora = {"rank": 4, "publish": publish}
    changes = {"training__epochs": 1, "training__learning_rate": 1e-2, "training__save_every": 2}
    config = write_config(tmp_path / "job.yaml", chat_values(chats, store, llama, model__lora=lora, **changes))
    assert start_warm(tmp_path / "said", "trainer.__main__", config).wait().status == 0
    run = only_run(store)
    losses = [each["loss"] for each in read_records(Store(str(store)), run) if each["kind"] == "evaluation"]
    assert losses[-1] < losses[0]
    evaluation = read_sealed(Store(str(store)), f"{run}/eval.json")
    assert evaluation is not None
    assert evaluation["groups"]["validation"]["figures"]["loss"] == pytest.approx(losses[-1], abs=1e-5)
    step = next(iter((store / run / "checkpoints").iterdir()))
    assert not (step / "model.safetensors").exists() and (step / "adapter_model.safetensors").exists()
    final = store / run / "final"
    assert (final / "adapter_model.safetensors").exists() == (publish == "adapter")
    (end, *_) = json.loads((final / "generation_config.json").read_text())["eos_token_id"]
    assert AutoTokenizer.from_pretrained(str(final)).decode(end) == "<|im_end|>"

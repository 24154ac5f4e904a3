"""Instruction tuning: packed windows against conversations by themselves, the loop against a plain one, and what comes
out.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

from tests.depth import once
from tests.processes import finish, start_warm
from tests.support import records, write_config, write_rows
from tests.trainer.chats import CHATML, END, MARKED, chat_job, chat_model, chat_values
from tests.trainer.made import encode_conversations
from tests.trainer.plain_loops import train_plainly
from tests.trainer.small_jobs import IN_TURN, Finished
from tests.trainer.test_refusals import message_of
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.data.dataset import Batch
from trainer.kinds.chat.workload import Chat
from trainer.pipelines.any_kind import train
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

TOLERANCE = 1e-4
"""Of losses, absolute: float32 sums taken in another order, carried through AdamW."""


def workload(chats: Path, store: Path, model: Path, ranks: int = 1, **changes: Any) -> Chat:
    job = chat_job(chats, store, model, **changes)
    return Chat(job, Store(str(store)), encode_conversations(job, silent()), ranks)


def epoch_of(work: Chat, rank: int = 0) -> list[Batch]:
    return [work.read_batch(number, rank) for number in range(work.plan.steps_per_epoch)]


def loss_of(objective: torch.nn.Module, batches: list[Batch]) -> torch.Tensor:
    return torch.stack([objective(**inputs) for batch in batches for inputs in batch.micro_batches]).sum()


@pytest.mark.parametrize("attention", once("sdpa", "eager"))
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packed_conversations_have_the_losses_and_gradients_that_they_have_by_themselves(
    chats: Path, tmp_path: Path, family: str, attention: str
) -> None:
    model = chat_model(tmp_path / family, family)
    found = []
    for packing in (True, False):
        work = workload(chats, tmp_path / "store", model, data__packing=packing, model__attention=attention)
        loaded = work.load_model(None).eval()
        loss = loss_of(work.make_objective(loaded), epoch_of(work))
        loss.backward()
        norm = torch.stack([each.grad.norm() for each in loaded.parameters() if each.grad is not None]).norm()
        found.append((work, loss.item(), norm.item()))
    (packed, *figures), (alone, *expected) = found
    assert figures == pytest.approx(expected, rel=1e-5)
    assert packed.plan.windows < alone.plan.windows == alone.plan.examples == packed.plan.examples
    assert packed.plan.fill > 0.9 > alone.plan.fill


def test_experts_are_balanced_by_what_is_said_not_by_what_fills_up_the_rows(chats: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "mixtral", "mixtral", output_router_logits=True, router_aux_loss_coef=0.5)
    work = workload(chats, tmp_path / "store", model, data__packing=False, training__group_by_length=False)
    learner = work.load_model(None).train()
    objective = work.make_objective(learner)
    for inputs in work.read_batch(0, 0).micro_batches:
        ids, labels, said = (inputs[name] for name in ("input_ids", "labels", "attention_mask"))
        fill = work._set.pad_id
        lengths = [
            len(row) - next(n for n, each in enumerate([*row.flip(0).tolist(), -1]) if each != fill) for row in ids
        ]
        assert said.sum(dim=1).tolist() == pytest.approx(lengths, abs=1), "the last token may be that which pads"
        assert (said == 0).any()
        expected = learner(input_ids=ids, attention_mask=said, labels=labels).loss * (labels[:, 1:] != -100).sum()
        assert objective(**inputs).item() == pytest.approx(expected.item() * inputs["weight"].item(), rel=1e-5)
        blind = learner(input_ids=ids, labels=labels).loss * (labels[:, 1:] != -100).sum()
        assert abs(blind.item() - expected.item()) > 1e-3
    nothing = {**inputs, "labels": torch.full_like(labels, -100)}
    assert objective(**nothing).item() == 0.0


def test_the_targets_of_an_epoch_are_the_assistants_tokens(chats: Path, llama: Path, tmp_path: Path) -> None:
    work = workload(chats, tmp_path / "store", llama)
    batches = epoch_of(work)
    labels = [inputs["labels"] for batch in batches for inputs in batch.micro_batches]
    assert (
        sum(int((each != -100).sum()) for each in labels)
        == sum(batch.targets for batch in batches)
        == work.plan.answer_tokens
    )
    tokenizer = AutoTokenizer.from_pretrained(str(work.files[0].parent))
    told = []
    for line in (chats / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        said = [m["content"] for m in row.get("messages", []) if m["role"] == "assistant"] or [row["completion"]]
        told += [text + END for text in said]
    decoded = "".join(tokenizer.decode(each[each != -100]) for each in labels)
    assert sorted(decoded.split(END)[:-1]) == sorted(text.removesuffix(END) for text in told)


def test_a_family_that_carries_a_state_on_is_not_packed(chats: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "mamba", "mamba")
    work = workload(chats, tmp_path / "store", model)
    with pytest.raises(ConfigError, match="accepts no positions, so conversations cannot share a window"):
        work.make_objective(work.load_model(None))
    alone = workload(chats, tmp_path / "store", model, data__packing=False)
    assert torch.isfinite(loss_of(alone.make_objective(alone.load_model(None)), epoch_of(alone)[:1]))


@pytest.mark.parametrize("without", [{}, {"do_sample": False}])
def test_settings_of_sampling_without_do_sample_are_published_with_it(
    chats: Path, tmp_path: Path, without: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    model = chat_model(tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, **without}))
    job = chat_job(chats, tmp_path, model, training__epochs=None, training__max_steps=1)
    with caplog.at_level("INFO"):
        run = train(job, silent())
    published = json.loads((tmp_path / run.key / "final" / "generation_config.json").read_text())
    assert (published["do_sample"], published["temperature"], published["top_p"]) == (True, 0.6, 0.9)
    assert "has settings of sampling, but do_sample is" in caplog.text


def test_contradictory_settings_of_generation_are_refused_before_training(chats: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"length_penalty": 2.0}))
    with pytest.raises(
        ConfigError, match=r"generation_config.json of model .* contradict each other: .*length_penalty"
    ):
        workload(chats, tmp_path, model).load_model(None)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_shares_together_are_the_batch(chats: Path, llama: Path, tmp_path: Path, ranks: int) -> None:
    """Also where an epoch's last batch has fewer windows than ranks."""
    whole, *others = (workload(chats, tmp_path / "store", llama, count, data__context=128) for count in (1, ranks))
    objective = whole.make_objective(whole.load_model(None).eval())
    for number in (0, whole.plan.steps_per_epoch - 1):
        expected = whole.read_batch(number, 0)
        shares = [others[0].read_batch(number, rank) for rank in range(ranks)]
        assert {(share.targets, share.tokens) for share in shares} == {(expected.targets, expected.tokens)}
        assert len({len(share.micro_batches) for share in shares}) == 1
        assert loss_of(objective, shares).item() == pytest.approx(loss_of(objective, [expected]).item(), rel=1e-5)


def plain_loop(
    learner: Any, batches: Iterable[Mapping[str, Any]], total_steps: int, clip: float = math.inf
) -> list[float]:
    """The losses of a model of transformers that a loop of its course trains on these batches."""
    weights = list(learner.parameters())
    groups = [
        {"params": [each for each in weights if each.dim() > 1], "weight_decay": 0.01},
        {"params": [each for each in weights if each.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    schedule = get_scheduler("linear", optimizer, 0, total_steps)
    return train_plainly(optimizer, schedule, (learner(**inputs).loss for inputs in batches), clip)


def plain_losses(work: Chat, chats: Path, model: Path, steps: int) -> list[float]:
    """What a plain loop makes of the same conversations, one row each, masked by the template's own marks."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    learner = AutoModelForCausalLM.from_pretrained(model).train()
    rows = []
    for line in (chats / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        pair = [{"role": "user", "content": row.get("prompt")}, {"role": "assistant", "content": row.get("completion")}]
        asked = {"chat_template": MARKED, "return_dict": True, "return_assistant_tokens_mask": True}
        made = tokenizer.apply_chat_template(row.get("messages", pair), **asked)
        rows.append((made["input_ids"], made["assistant_masks"]))
    batches = []
    for step in range(steps):
        examples = [e for w in work.order.examples(step) for e in work.windows.window(int(w))]
        width = max(len(rows[e][0]) for e in examples)
        ids, mask = torch.zeros(2, len(examples), width, dtype=torch.long)
        labels = torch.full((len(examples), width), -100)
        for place, example in enumerate(examples):
            tokens, answered = (torch.tensor(each) for each in rows[example])
            ids[place, : len(tokens)], mask[place, : len(tokens)] = tokens, 1
            labels[place, : len(tokens)] = torch.where(answered == 1, tokens, -100)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return plain_loop(learner, batches, work.plan.total_steps, clip=1.0)


def test_the_losses_are_those_of_a_plain_loop_of_transformers(
    chats: Path, llama: Path, tmp_path: Path, runtime: Runtime
) -> None:
    changes = {
        "training__global_batch": 2,
        "training__micro_batch": 1,
        "training__max_steps": 20,
        "training__epochs": None,
    }
    job = chat_job(chats, tmp_path / "store", llama, **changes)
    train(job, silent())
    work = Chat(job, Store(job.store), encode_conversations(job, silent()), 1)
    ours = [record["loss"] for record in records(tmp_path / "store", "train")]
    assert len(ours) == 20
    np.testing.assert_allclose(ours, plain_losses(work, chats, llama, 20), rtol=0, atol=TOLERANCE)
    assert ours[-1] < ours[0] - 0.3


def test_what_is_published_answers_with_its_own_template_and_stops_where_a_turn_ends(answering: Finished) -> None:
    folder = answering.folder / "final"
    tokenizer, learner = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.chat_template == CHATML
    end = tokenizer.convert_tokens_to_ids(END)
    assert learner.generation_config.eos_token_id == [end, tokenizer.eos_token_id]
    assert learner.generation_config.pad_token_id == tokenizer.pad_token_id
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert learner.generate(**asked, max_new_tokens=3).shape[1] > asked["input_ids"].shape[1]
    report = (answering.folder / "report.html").read_text()
    evaluation = json.loads((answering.folder / "eval.json").read_text())
    assert evaluation["groups"].keys() == {"validation", "test"}
    assert len(evaluation["samples"]) == 2
    assert "Expected answer, from the data: " in report and "conversational" in (folder / "README.md").read_text()


def test_the_final_models_figures_are_those_of_the_last_evaluation(
    answering: Finished, chats: Path, llama: Path
) -> None:
    evaluation = json.loads((answering.folder / "eval.json").read_text())
    first, *_, last = records(answering.store, "evaluation")
    assert evaluation["groups"]["validation"]["figures"]["loss"] == pytest.approx(last["loss"], abs=1e-6)
    assert last["loss"] < first["loss"]
    assert evaluation["groups"]["validation"]["counts"]["answer_tokens"] == last["answer_tokens"]


def test_bits_a_byte_are_of_the_text_of_the_answers_and_what_ends_them(answering: Finished, chats: Path) -> None:
    """As a plain loop over the conversations, one by one, finds them."""
    folder, bits, size = answering.folder / "final", 0.0, 0
    tokenizer, learner = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    for line in (chats / "test.jsonl").read_text().splitlines():
        row = json.loads(line)
        pair = [{"role": "user", "content": row.get("prompt")}, {"role": "assistant", "content": row.get("completion")}]
        messages = row.get("messages", pair)
        asked = {"chat_template": MARKED, "return_dict": True, "return_assistant_tokens_mask": True}
        made = tokenizer.apply_chat_template(messages, **asked)
        ids, answered = torch.tensor(made["input_ids"]), torch.tensor(made["assistant_masks"])[1:] == 1
        with torch.no_grad():
            chances = learner(ids[None]).logits[0, :-1].log_softmax(dim=-1)
        bits -= chances.gather(1, ids[1:, None])[answered].sum().item() / math.log(2)
        size += sum(len(message["content"].encode()) for message in messages if message["role"] == "assistant")
    evaluation = json.loads((answering.folder / "eval.json").read_text())
    assert evaluation["groups"]["test"]["counts"]["answer_bytes"] == size
    assert evaluation["groups"]["test"]["figures"]["bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)


def test_a_bad_record_is_named_by_file_and_line_before_training(chats: Path, llama: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": " "}]
    path = write_rows(tmp_path / "bad.jsonl", rows)
    config = write_config(tmp_path / "job.yaml", chat_values(chats, tmp_path / "store", llama, data__train=[path]))
    message = message_of(start_warm(tmp_path / "said", "trainer.__main__", config).wait())
    assert f"{path}: line 2: `completion` is empty" in message
    assert not list((tmp_path / "store").glob("runs/*"))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_ranks_compute_what_one_does(
    answering: Finished, chats: Path, llama: Path, tmp_path: Path, sharding: str
) -> None:
    store = tmp_path / "store"
    changes = {**IN_TURN, "training__sharding": sharding, "run": "two"}
    config = write_config(tmp_path / "job.yaml", chat_values(chats, store, llama, **changes))
    finish(tmp_path / "said", config, 2)
    ours, theirs = ([each["loss"] for each in records(root, "train")] for root in (store, answering.store))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    assert json.loads((store / "runs/two/plan.json").read_text())["ranks"] == 2
    assert json.loads((store / "runs/two/final/generation_config.json").read_text())["pad_token_id"] is not None

"""Preference tuning: its records, the reference's log-probabilities, and what a model learns."""

import json
import math
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import trainer.kinds.preference.reference as reference_step
import trainer.kinds.preference.workload as workload
from tests.depth import once
from tests.families import Case, make
from tests.processes import finish, start_trainers
from tests.support import cpu_runtime, flip_bit, only_run, records, write_config, write_rows
from tests.trainer.chats import MARKED, chat_model
from tests.trainer.preferences import plain_sum, preference_job, preference_values
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError, ConfigError, PipelineError, RecordError, RunError
from trainer.common.progress import Progress, Update, silent
from trainer.config.files import override
from trainer.config.models import LoraConfig
from trainer.data.chat.encoded import open_chat
from trainer.data.chat.messages import read_pair
from trainer.data.chat.rendering import ASSISTANT, SYSTEM, USER
from trainer.kinds.kind import kind_of
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.reference import read_reference
from trainer.kinds.preference.workload import Preference, without_dropout
from trainer.models.adapters import add_adapter
from trainer.models.trial import check_repeats
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.steps import here
from trainer.store.manifest import ArtifactRef, read_manifest
from trainer.store.names import REFERENCE_KIND
from trainer.store.storage import Store

ASKED, SHORT, LONG = "What is 2 and 3?", "5.", "That is 5, as far as I know."


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def read(**record: Any) -> list[list[tuple[str, str, bool]]]:
    values = [record.get(name) for name in ("prompt", "messages", "chosen", "rejected")]
    return [[tuple(message) for message in each] for each in read_pair(values, list(record))]


@pytest.fixture
def preferring(ran: Any) -> Finished:
    """A run of preference tuning."""
    found: Finished = ran("preference tuning")
    return found


def test_a_prompt_and_its_answers_are_told_in_each_form_that_trl_documents() -> None:
    question, short, long = turn(USER, ASKED), [turn(ASSISTANT, SHORT)], [turn(ASSISTANT, LONG)]
    expected = [[(USER, ASKED, False), (ASSISTANT, answer, True)] for answer in (SHORT, LONG)]
    assert read(prompt=ASKED, chosen=SHORT, rejected=LONG) == expected
    assert read(prompt=[question], chosen=short, rejected=long) == expected
    assert read(messages=[question], chosen=SHORT, rejected=long) == expected
    assert read(chosen=[question, *short], rejected=[question, *long]) == expected
    whole = {"chosen": [question, *short], "rejected": [question, *long]}
    assert read(prompt=ASKED, **whole, messages=whole["chosen"]) == expected, "as data sets of the hub have it"


def test_what_the_assistant_said_before_is_no_answer() -> None:
    begin = [turn(SYSTEM, "Be brief."), turn(USER, "Hello"), turn(ASSISTANT, "Hi"), turn(USER, ASKED)]
    (chosen, rejected) = read(chosen=[*begin, turn(ASSISTANT, SHORT)], rejected=[*begin, turn(ASSISTANT, LONG)])
    assert [learnt for *_, learnt in chosen] == [learnt for *_, learnt in rejected] == [False] * 4 + [True]
    assert read(prompt=begin, chosen=SHORT, rejected=LONG) == [chosen, rejected]
    (longer, shorter) = read(
        chosen=[*begin, turn(ASSISTANT, SHORT), turn(USER, "Sure?"), turn(ASSISTANT, "Yes.")],
        rejected=[*begin, turn(ASSISTANT, SHORT)],
    )
    assert [learnt for *_, learnt in longer] == [False] * 4 + [True] * 3, "the end of one of them is an answer"
    assert [learnt for *_, learnt in shorter] == [False] * 4 + [True]


BAD = [
    ({"prompt": ASKED, "chosen": SHORT}, "`rejected` is missing; the record has prompt, chosen"),
    ({"prompt": ASKED, "rejected": SHORT}, "`chosen` is missing"),
    ({"chosen": SHORT, "rejected": LONG}, "`prompt` is missing: it is optional only if"),
    ({"prompt": ASKED, "chosen": SHORT, "rejected": SHORT}, "`chosen` and `rejected` are the same answer"),
    ({"prompt": ASKED, "chosen": " ", "rejected": SHORT}, "`chosen` is empty"),
    ({"prompt": ASKED, "chosen": SHORT, "rejected": []}, "`rejected` holds no answer of the assistant"),
    (
        {"prompt": "Why?", **{name: [turn(USER, "a"), turn(ASSISTANT, name)] for name in ("chosen", "rejected")}},
        "but do not begin with the `prompt`",
    ),
    ({"messages": [turn(USER, "a")], "chosen": [turn(USER, "c")], "rejected": LONG}, "`chosen` holds no answer"),
    ({"prompt": ASKED, "chosen": [turn(USER, SHORT)], "rejected": LONG}, "`chosen` holds no answer"),
    ({"prompt": "", "chosen": SHORT, "rejected": LONG}, "`prompt` is empty"),
    (
        {"chosen": [turn(USER, "a"), turn(ASSISTANT, SHORT)], "rejected": [turn(USER, "b"), turn(ASSISTANT, LONG)]},
        "share no first turn",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "problem"), once(*BAD))
def test_a_bad_pair_is_named_by_file_and_line_and_may_be_skipped(
    record: dict[str, Any], problem: str, preferences: Path, llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(preferences, tmp_path / "pairs")
    with open(tmp_path / "pairs" / "train.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    lines = len((tmp_path / "pairs" / "train.jsonl").read_text(encoding="utf-8").splitlines())
    job = preference_job(tmp_path / "pairs", tmp_path / "store", llama)
    with pytest.raises(RecordError, match=rf"train\.jsonl: line {lines}: .*({problem})"):
        here(silent())("encode", job)
    allowed = preference_job(tmp_path / "pairs", tmp_path / "store", llama, data__max_bad_records=1)
    key = here(silent())("encode", allowed).key
    told = open_chat(Store(job.store), key).details["splits"]["train"]
    assert (told["bad_records"], told["examples"]) == (1, lines - 1)


def test_a_dry_run_tells_the_lengths_of_answers_with_their_prompts_before_and_after_encoding(
    preferences: Path, llama: Path, tmp_path: Path
) -> None:
    job = preference_job(preferences, tmp_path / "store", llama)
    checked = kind_of(job).preflight(job, silent())
    look = checked.lengths
    assert checked.looked_at == f"all {sum(checked.splits.values())} pairs"
    assert all(each.mean <= each.longest for each in look.values())
    shown: list[Update] = []
    found = open_chat(Store(job.store), here(Progress(shown.append, 0.0))("encode", job).key).splits
    assert (shown[-1].done, shown[-1].unit) == (sum(checked.splits.values()), "pair")
    assert {name: each.mean for name, each in look.items()} == {
        name: pytest.approx(float(split.lengths.mean())) for name, split in found.items()
    }
    assert kind_of(job).preflight(job, silent()).lengths == look


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"training__gamma": 1.0}, "gamma requires loss simpo, not 'dpo'"),
        ({"training__loss": "ipo", "training__label_smoothing": 0.1}, "label_smoothing requires loss dpo"),
        ({"data__source": "csv"}, "csv holds no conversations: write the pairs as JSON Lines"),
        ({"promotion": {"name": "a", "metric": "bleu", "threshold": 1.0}}, "expected one of loss, accuracy"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        preference_job(tmp_path, tmp_path / "store", "x", **changes)


def test_a_loss_has_the_defaults_of_its_paper(tmp_path: Path) -> None:
    schema = PreferenceJob.model_json_schema()["$defs"]["PreferenceTrainingConfig"]["properties"]
    assert "default" not in schema["beta"], "Prefect's form would send it"
    defaults = {"dpo": (0.1, None), "ipo": (0.1, None), "simpo": (2.0, 1.0), "orpo": (0.1, None)}
    for loss, expected in defaults.items():
        training = preference_job(tmp_path, tmp_path / "store", "x", training__loss=loss).training
        assert (training.beta, training.gamma) == expected
    given = preference_job(tmp_path, tmp_path / "store", "x", training__loss="simpo", training__beta=2.5)
    assert (given.training.beta, given.training.gamma) == (2.5, 1.0)
    null = preference_job(tmp_path, tmp_path / "store", "x", training__loss="simpo", training__gamma=None)
    assert null.training.gamma == 1.0


def test_another_loss_replaces_the_defaults_of_the_one_before_but_not_what_was_set(tmp_path: Path) -> None:
    simpo = preference_job(tmp_path, tmp_path / "store", "x", training__loss="simpo")
    training = override(simpo, ["training.loss=dpo"]).training
    assert (training.beta, training.gamma) == (0.1, None)
    given = preference_job(tmp_path, tmp_path / "store", "x", training__loss="simpo", training__beta=2.5)
    assert override(given, ["training.loss=dpo"]).training.beta == 2.5


@pytest.mark.parametrize("loss", [["simpo"], {}])
def test_a_loss_that_is_no_name_is_refused(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.loss: expected 'dpo', 'ipo', 'simpo' or 'orpo', found the"):
        preference_job(tmp_path, tmp_path / "store", "x", training__loss=loss)


def plain_sums(folder: Path, pairs: Path) -> list[list[float]]:
    """log p of both answers of each pair, by transformers alone, one answer at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.chat_template = MARKED
    found = []
    for line in pairs.read_text(encoding="utf-8").splitlines():
        record, sums = json.loads(line), []
        for answer in (record["chosen"], record["rejected"]):
            turns = [turn(USER, record["prompt"]), turn(ASSISTANT, answer)]
            read = tokenizer.apply_chat_template(
                turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, return_tensors="pt"
            )
            answered = torch.as_tensor(read["assistant_masks"]).view(-1).bool()
            sums.append(plain_sum(model, read["input_ids"][0], answered))
        found.append(sums)
    return found


def test_the_reference_is_that_of_a_plain_loop(preferences: Path, llama: Path, tmp_path: Path) -> None:
    job = preference_job(preferences, tmp_path / "store", llama)
    data = here(silent())("encode", job)
    cpu_runtime()
    made = here(silent())("reference", job, data=data)
    found = read_reference(Store(job.store), made.key)
    for split in ("train", "validation", "test"):
        expected = np.array(plain_sums(llama, preferences / f"{split}.jsonl"))
        np.testing.assert_allclose(found[split], expected, rtol=1e-5)
    assert here(silent())("reference", job, data=data).reused


def test_what_was_computed_before_the_work_was_broken_off_is_kept(
    preferences: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_step, "PART", 8)
    cpu_runtime()
    jobs = [preference_job(preferences, tmp_path / name, llama) for name in ("whole", "broken")]
    data = [here(silent())("encode", job) for job in jobs]
    whole = here(silent())("reference", jobs[0], data=data[0])
    computed, sum_answers = list[str](), reference_step.sum_answers
    most = 2

    def counted(model: Any, data: Any, part: Any, *rest: Any) -> Any:
        if len(computed) == most:
            raise KeyboardInterrupt
        computed.append(part.name)
        return sum_answers(model, data, part, *rest)

    monkeypatch.setattr(reference_step, "sum_answers", counted)
    with pytest.raises(KeyboardInterrupt):
        here(silent())("reference", jobs[1], data=data[1])
    first, second = computed
    (kept,) = (tmp_path / "broken" / "cache").glob("reference-*")
    flip_bit(kept / first)
    computed.clear()
    most = 100
    again = here(silent())("reference", jobs[1], data=data[1])
    splits = open_chat(Store(jobs[1].store), data[1].key).details["splits"]
    sizes = {split: told["examples"] for split, told in splits.items()}
    every = [part.name for part in reference_step.parts_of(sizes)]
    assert sorted(computed) == sorted({*every} - {second}), "a damaged file is computed again, the other is kept"
    assert again.content == whole.content and again.key == whole.key and not kept.exists()


def test_a_job_that_another_overtakes_takes_its_reference(
    preferences: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_step, "PART", 8)
    cpu_runtime()
    job = preference_job(preferences, tmp_path / "store", llama)
    data = here(silent())("encode", job)
    parts, others, sum_answers = list[str](), list[ArtifactRef](), reference_step.sum_answers

    def overtaken(model: Any, data_set: Any, part: Any, *rest: Any) -> Any:
        parts.append(part.name)
        if len(parts) == 2:
            others.append(here(silent())("reference", job, data=data))
        return sum_answers(model, data_set, part, *rest)

    monkeypatch.setattr(reference_step, "sum_answers", overtaken)
    made = here(silent())("reference", job, data=data)
    assert others == [made.model_copy(update={"reused": False})]
    assert not list((tmp_path / "store" / "cache").glob("reference-*"))


def test_losses_and_batches_share_a_reference_and_another_text_has_its_own(
    preferences: Path, llama: Path, tmp_path: Path
) -> None:
    cpu_runtime()
    job = preference_job(preferences, tmp_path / "store", llama)
    data = here(silent())("encode", job)
    key = here(silent())("reference", job, data=data).key
    changes = {"training__beta": 0.5, "training__loss": "ipo", "evaluation__batch": 2}
    same = preference_job(preferences, tmp_path / "store", llama, **changes)
    assert here(silent())("reference", same, data=data).key == key
    other = preference_job(preferences, tmp_path / "store", llama, data__context=64)
    assert here(silent())("reference", other, data=here(silent())("encode", other)).key != key


def test_a_reference_that_gives_no_finite_number_is_refused(
    preferences: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_runtime()
    job = preference_job(preferences, tmp_path / "store", llama)
    data, sum_answers = here(silent())("encode", job), reference_step.sum_answers

    def overflown(*arguments: Any) -> Any:
        sums = sum_answers(*arguments)
        sums[1, 0] = math.nan
        return sums

    monkeypatch.setattr(reference_step, "sum_answers", overflown)
    with pytest.raises(ArtifactError, match="not finite for an answer of record 1 of the train split"):
        here(silent())("reference", job, data=data)


def test_a_model_that_overflows_on_some_pairs_has_no_accuracy(
    preferences: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = preference_job(preferences, tmp_path / "store", llama, training__loss="simpo")
    data = open_chat(Store(job.store), here(silent())("encode", job).key)
    lengths = torch.from_numpy(workload.answer_lengths(data.splits["validation"]))
    sums = -lengths.double() * torch.tensor([1.0, 2.0])  # every token of a rejected answer is less probable
    monkeypatch.setattr(workload, "sum_answers", lambda *arguments: sums)
    measured = partial(workload.score_pairs, None, data, "validation", job, None, cpu_runtime())
    assert measured().figures["accuracy"] == 1.0
    sums[0, 1] = math.nan
    assert math.isnan(measured().figures["accuracy"])


def test_swapped_columns_are_told_by_the_reference(
    preferences: Path, llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cpu_runtime()
    accuracies = []
    for name in ("as they are", "swapped"):
        pairs = tmp_path / name
        for split in ("train", "validation", "test"):
            rows = [json.loads(line) for line in (preferences / f"{split}.jsonl").read_text("utf-8").splitlines()]
            if name == "swapped":
                rows = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
            write_rows(pairs / f"{split}.jsonl", rows)
        job = preference_job(pairs, tmp_path / "store", llama)
        caplog.clear()
        made = here(silent())("reference", job, data=here(silent())("encode", job))
        manifest = read_manifest(Store(job.store), made.key, REFERENCE_KIND)
        assert manifest is not None
        accuracies.append(manifest.details["splits"]["train"]["accuracy"])
        warned = [each.message for each in caplog.records if "are swapped" in each.message]
        assert bool(warned) is (accuracies[-1] < 0.5)
    assert accuracies[0] == pytest.approx(1 - accuracies[1])


def test_the_first_loss_is_that_of_a_model_that_is_its_own_reference(preferring: Finished) -> None:
    (first, *_, last) = records(preferring.store, "evaluation")
    assert first["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert (first["margin"], first["reward_chosen"]) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert last["loss"] < 0.6 and last["accuracy"] > first["accuracy"]


def test_the_page_shows_answers_before_and_after_and_names_loss_and_reference(preferring: Finished) -> None:
    page = (preferring.folder / "report.html").read_text(encoding="utf-8")
    found = json.loads((preferring.folder / "eval.json").read_text(encoding="utf-8"))
    assert len(found["samples"]) == 2 and all({"expected", "before"} <= each.keys() for each in found["samples"])
    assert "Answer before tuning: " in page and "dpo, beta 0.1" in page and "computed once" in page
    lineage = json.loads((preferring.folder / "lineage.json").read_text(encoding="utf-8"))
    assert lineage["reference"]["key"].startswith("references/preferences-")


@pytest.mark.parametrize("loss", once("ipo", "simpo", "orpo"))
def test_each_loss_learns(loss: str, preferences: Path, llama: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "job.yaml", preference_values(preferences, tmp_path / "store", llama, training__loss=loss)
    )
    finish(tmp_path / "said", config)
    found = records(tmp_path / "store", "evaluation")
    assert found[-1]["loss"] < found[0]["loss"] and found[-1]["margin"] > found[0]["margin"]
    assert (tmp_path / "store" / "references").exists() is (loss == "ipo"), "the others need none"


def test_a_run_without_a_reference_is_not_forked_with_a_loss_that_needs_one(
    preferences: Path, llama: Path, tmp_path: Path
) -> None:
    short = {"training__max_steps": 2, "training__epochs": None}

    def job(**changes: Any) -> PreferenceJob:
        return preference_job(preferences, tmp_path / "store", llama, **short, **changes)

    cpu_runtime()
    assert train(job(run="one", training__loss="simpo"), silent()).key == "runs/one"
    forked = job(run="one", resume="fork")
    said = r"runs/one cannot be forked with training.loss dpo.* set model.pretrained to runs/one, and remove `run`"
    for refused in (kind_of(forked).preflight, train):
        with pytest.raises(RunError, match=said):
            refused(forked, silent())
    again = train(job(model__pretrained="runs/one", name="two"), silent()).key
    (first, *_) = records(tmp_path / "store", "evaluation", again)
    assert first["loss"] == pytest.approx(math.log(2), rel=1e-6), "the model that it starts from is the reference"
    onward = train(
        job(run=again.removeprefix("runs/"), model__pretrained="runs/one", resume="fork", training__seed=1), silent()
    )
    assert "-fork-" in onward.key, "it has the same reference"


def test_an_adapter_has_the_base_for_its_reference(preferences: Path, llama: Path, tmp_path: Path) -> None:
    values = preference_values(preferences, tmp_path / "store", llama, model__lora={"rank": 4, "alpha": 8})
    finish(tmp_path / "said", write_config(tmp_path / "job.yaml", values))
    found = records(tmp_path / "store", "evaluation")
    assert found[0]["loss"] == pytest.approx(math.log(2), rel=1e-6) and found[-1]["loss"] < found[0]["loss"]
    assert (tmp_path / "store" / only_run(tmp_path / "store") / "final" / "model.safetensors").exists()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own
def test_an_adapter_beside_the_plain_base_is_measured_against_that_base(
    preferences: Path, llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    quantised = {"model__quantize": "nf4", "model__lora": {"publish": "adapter"}, "training__learning_rate": 1e-2}
    cpu_runtime()
    job = preference_job(preferences, tmp_path / "store", llama, **quantised)
    run = train(job, silent()).key
    result = evaluate_run(job, run, silent())
    pairs = open_chat(Store(job.store), result.data[0])
    held_out = pairs.splits["validation"]
    base = AutoModelForCausalLM.from_pretrained(llama)
    read = [(torch.from_numpy(np.array(each)) for each in held_out.read(n)) for n in range(len(held_out))]
    rows = [(ids, answered.bool()) for ids, answered in read]
    before = [plain_sum(base, *row) for row in rows]
    adapted = PeftModel.from_pretrained(base, tmp_path / "store" / run / "final")
    over = torch.tensor([plain_sum(adapted, *row) - was for row, was in zip(rows, before, strict=True)]).view(-1, 2)
    margin = (over[:, 0] - over[:, 1]).mean() * job.training.beta
    assert result.groups["validation"].figures["margin"] == pytest.approx(margin.item(), abs=1e-4)


@pytest.mark.deep
def test_two_ranks_compute_what_one_does(preferences: Path, llama: Path, tmp_path: Path) -> None:
    changes = {"training__max_steps": 6, "training__epochs": None, "training__micro_batch": 2}
    losses = []
    for ranks in (1, 2):
        store = tmp_path / f"store-{ranks}"
        config = write_config(tmp_path / f"{ranks}.yaml", preference_values(preferences, store, llama, **changes))
        finish(tmp_path / f"said-{ranks}", config, ranks)
        losses.append([each["loss"] for each in records(store, "train")])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    made = [
        {path.name: path.read_bytes() for path in (tmp_path / f"store-{n}").glob("references/*/*.npy")} for n in (1, 2)
    ]
    assert made[0] == made[1] and made[0]


def test_a_reference_that_is_damaged_is_told_and_made_again(preferring: Finished, tmp_path: Path) -> None:
    copy = preferring.copy(tmp_path)
    (part,) = copy.store.glob("references/*/train.npy")
    before = part.read_bytes()
    flip_bit(part)
    job = copy.job(run="another", training__max_steps=1, training__epochs=None)
    assert isinstance(job, PreferenceJob)
    data = here(silent())("encode", job)
    cpu_runtime()
    with pytest.raises(PipelineError, match=r"references/.*train\.npy.*"):
        Preference(job, Store(job.store), ArtifactRef(**data.model_dump()), 1)
    train(job, silent())
    assert part.read_bytes() == before


@pytest.mark.deep
def test_a_process_that_is_killed_between_two_files_of_a_reference_leaves_what_the_next_goes_on_with(
    preferring: Finished, preferences: Path, llama: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    config = write_config(tmp_path / "job.yaml", preference_values(preferences, store, llama, training__epochs=1))
    (first,) = start_trainers(tmp_path / "said-killed", config)
    ended = first.send_when(signal.SIGKILL, lambda: any(store.glob("cache/reference-*/train-*.json")))
    assert ended.status == -signal.SIGKILL
    finish(tmp_path / "said", config)
    (whole, again) = (
        {path.name: path.read_bytes() for path in folder.glob("references/*/*.npy")}
        for folder in (preferring.store, store)
    )
    assert whole == again


@pytest.mark.deep
def test_a_familys_dropout_is_left_out_also_where_ranks_share_the_model(preferences: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "gpt2", attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1, n_positions=512)
    losses = {}
    for name, ranks, changes in (("one", 1, {}), ("fsdp", 2, {"training__sharding": "fsdp"})):
        store = tmp_path / name
        values = preference_values(
            preferences, store, model, training__epochs=None, training__max_steps=4, training__micro_batch=2, **changes
        )
        finish(tmp_path / f"said-{name}", write_config(tmp_path / f"{name}.yaml", values), ranks)
        losses[name] = [each["loss"] for each in records(store, "train")]
        assert losses[name][0] == pytest.approx(math.log(2), rel=1e-5), "nothing is dropped"
    np.testing.assert_allclose(losses["one"], losses["fsdp"], rtol=1e-4)


DRAWING = {
    "llama": {"attention_dropout": 0.5},
    "opt": {"layerdrop": 0.5},
    "phimoe": {"router_jitter_noise": 0.5},
    "dbrx": {"resid_pdrop": 0.5},
}


@pytest.mark.parametrize("family", DRAWING)
def test_a_model_draws_nothing_in_training_whatever_its_family_calls_it(family: str) -> None:
    model = make(Case(family, DRAWING[family]))
    with pytest.raises(ConfigError, match=f"{next(iter(DRAWING[family]))} 0.5"):
        check_repeats(model, 32, "it")
    check_repeats(without_dropout(model), 32, "it")


def test_an_adapters_own_dropout_is_left_as_it_is_by_the_trial() -> None:
    model = without_dropout(make(Case("llama", {})))
    add_adapter(model, LoraConfig(rank=4, alpha=8, dropout=0.5), 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    generator = torch.get_rng_state()
    check_repeats(model.train(), 32, "it")
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(module.training for module in model.modules())


def test_a_model_whose_dropout_cannot_be_left_out_is_refused_by_the_setting(preferences: Path, tmp_path: Path) -> None:
    """Falcon reads its configuration in each pass."""
    model = chat_model(tmp_path / "model", "falcon", hidden_dropout=0.1)
    job = preference_job(preferences, tmp_path / "store", model)
    cpu_runtime()
    with pytest.raises(ConfigError) as caught:
        train(job, silent())
    message = str(caught.value)
    assert message.startswith(f"{model}, a 'falcon' model, has random outputs in training")
    assert "its configuration has hidden_dropout 0.1; " in message
    assert "to 0 in the config.json of a copy, and use that folder" in message


def test_a_model_with_a_loss_of_its_routers_is_refused(preferences: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "mixtral", output_router_logits=True)
    job = preference_job(preferences, tmp_path / "store", model)
    cpu_runtime()
    with pytest.raises(ConfigError, match="set output_router_logits to false"):
        train(job, silent())

"""Which figures can be compared: those that were measured on the same, and bits a byte between tokenizers."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.processes import cores
from tests.support import cpu_runtime, small_job
from tests.trainer.made import prepare
from tests.trainer.shard_files import whole
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob
from trainer.config.runs import PromotionConfig
from trainer.data.shards import open_shards
from trainer.data.tokenization import shard_manifests
from trainer.jobs import measure_champion
from trainer.models.tokenizer import tokenizer_files
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run
from trainer.records.basis import TextBasis, text_basis, why_incomparable
from trainer.records.evaluations import Result
from trainer.records.plans import PreparedData
from trainer.records.results import Verdict
from trainer.records.shapes import Move
from trainer.registry.promotion import find_champion, look, pass_through, promote, remeasure
from trainer.store.manifest import MANIFEST, publish_folder
from trainer.store.names import FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

ON = TextBasis(
    held_out={"code": "ab"}, shards=["shards/code-1"], tokenizer="t", keeps_text=True, context=32, precision="fp32"
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "loss", "bits"),
    [
        ({}, True, True),
        ({"tokenizer": "other"}, False, True),
        ({"context": 64}, False, True),
        ({"precision": "bf16"}, False, True),
        ({"shards": ["shards/code-2"]}, True, True),
        ({"begun": {"code": 9}}, False, False),
        ({"held_out": {"code": "cd"}}, False, False),
        ({"held_out": {"code": "ab", "docs": "ef"}}, False, False),
        ({"max_windows": 8}, False, False),
        ({"tokenizer": "other", "keeps_text": False}, False, False),
    ],
)
def test_what_must_be_the_same_depends_on_the_figure(change: dict[str, Any], loss: bool, bits: bool) -> None:
    other = ON.model_copy(update=change)
    for figure, comparable in (("loss", loss), ("perplexity", loss), ("bits_per_byte", bits)):
        assert (not why_incomparable(figure, ON, other)) == comparable == (not why_incomparable(figure, other, ON))


def test_a_choice_of_windows_is_another_text_with_another_tokenizer() -> None:
    few = ON.model_copy(update={"max_windows": 8})
    assert not why_incomparable("bits_per_byte", few, few)
    assert why_incomparable("bits_per_byte", few, few.model_copy(update={"tokenizer": "other"})) == [
        "tokenizer: t here, other there"
    ]
    all_of_it = why_incomparable("bits_per_byte", few, ON)
    assert all_of_it == ["choice: 8 windows per corpus of shards/code-1 here, none there"]
    elsewhere = why_incomparable("loss", few, few.model_copy(update={"shards": ["shards/code-2"]}))
    assert elsewhere == [
        "choice: 8 windows per corpus of shards/code-1 here, 8 windows per corpus of shards/code-2 there"
    ]


def test_with_a_document_mask_the_tokenizer_decides_which_bytes_are_predicted() -> None:
    masked = ON.model_copy(update={"document_mask": True})
    assert not why_incomparable("bits_per_byte", masked, masked.model_copy(update={"context": 64}))
    assert why_incomparable("bits_per_byte", masked, masked.model_copy(update={"tokenizer": "other"})) == [
        "tokenizer: t here, other there"
    ]
    assert why_incomparable("bits_per_byte", masked, ON) == ["document mask: on here, none there"]


def test_what_is_not_recorded_is_not_compared() -> None:
    assert why_incomparable("bits_per_byte", ON, None) == ["the data of a measurement is not recorded"]


@pytest.fixture(scope="module")
def corpora(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, PreparedData]]:
    """The same text by a small and by a larger vocabulary, and other held-out text by the larger one."""
    store = tmp_path_factory.mktemp("figures") / "store"

    def prepared(vocab_size: int, fraction: float = 0.15) -> PreparedData:
        tokenizer = {"vocab_size": vocab_size, "name": f"bpe{vocab_size}"}
        job = small_job(raw, store, data__tokenizer=tokenizer, data__validation_fraction=fraction)
        return prepare(job.preparation(), silent())

    return Store(str(store)), {"small": prepared(270), "large": prepared(512), "other": prepared(512, 0.3)}


def add_model(store: Store, run: str, data: PreparedData, steps: int) -> str:
    """Publish a tiny model, trained a little on the training side of shards, as a run's final one."""
    sets = [open_shards(store, ref.key) for ref in data.shards]
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=32, vocab_size=sets[0].details["vocab_size"])
    model: Any = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.from_numpy(np.concatenate([shard for s in sets for shard in whole(s.train)]).astype(np.int64))
    for step in range(steps):
        batch = tokens[step * 256 : step * 256 + 256].view(8, 32)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with store.staging() as folder:
        model.save_pretrained(folder)
        for file in tokenizer_files(store, data.tokenizer.key):
            shutil.copy(file, folder / file.name)
        publish_folder(store, folder, f"runs/{run}/{FINAL}", FINAL_KIND, f"{run:0<16}", {"run": run})
    return f"runs/{run}"


def measure(store: Store, run: str, data: PreparedData, **changes: Any) -> Result:
    cpu_runtime()
    shards = [ref.key for ref in data.shards]
    with cores(1):
        job = EvaluateJob(store=store.url, checkpoint=f"{run}/{FINAL}", **{"shards": shards, "context": 32, **changes})
        return evaluate_checkpoint(job, silent())


def crown(store: Store, name: str, run: str, found: Result) -> Move:
    return promote(store, name, run, found.figures(), "first", found.measured_on)


def consider(store: Store, name: str, run: str, found: Result, metric: str = "loss") -> Verdict:
    """What the stages do: the champion is measured anew if it must be, then the gate decides."""
    job = small_job(Path("nowhere"), store.url, promotion={"name": name, "metric": metric, "better_by": 0.0})
    assert job.promotion is not None
    with cores(1):
        remeasured = measure_champion(job, run, found, silent(), cpu_runtime())
    return pass_through(store, job.promotion, run, found.figures(), found.measured_on, remeasured)


def test_bits_a_byte_equal_those_of_transformers_alone_on_the_text(
    corpora: tuple[Store, dict[str, PreparedData]],
) -> None:
    store, data = corpora
    run = add_model(store, "alone", data["large"], 3)
    scores = measure(store, run, data["large"], context=32)
    folder = store.path(f"{run}/{FINAL}")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    bits, size = 0.0, 0
    for ref in data["large"].shards:
        own_bits, own_size = 0.0, 0
        for shard in whole(open_shards(store, ref.key).validation):
            ids = torch.from_numpy(shard.astype(np.int64))
            own_size += len(tokenizer.decode(ids[1:], skip_special_tokens=True).encode())
            for start in range(0, len(ids) - 1, 31):
                window = ids[start : start + 32][None]
                with torch.no_grad():
                    own_bits += model(input_ids=window, labels=window).loss.item() * (window.shape[1] - 1) / math.log(2)
        (score,) = [s for name, s in scores.groups.items() if name == ref.key.split("/")[1].rsplit("-", 1)[0]]
        assert score.counts["text_bytes"] == own_size
        assert score.figures["bits_per_byte"] == pytest.approx(own_bits / own_size, rel=1e-5)
        bits, size = bits + own_bits, size + own_size
    assert scores.total.figures["bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)


def test_what_all_held_out_tokens_stand_for_is_the_held_out_text(
    corpora: tuple[Store, dict[str, PreparedData]],
) -> None:
    store, data = corpora
    small, large, other = ([m.details for m in shard_manifests(store, each)] for each in data.values())
    for one, two, third in zip(small, large, other, strict=True):
        assert one["totals"]["validation_bytes"] == one["totals"]["validation_token_bytes"] > 0
        assert one["validation_digest"] == two["validation_digest"] != third["validation_digest"]
        assert one["totals"]["validation_tokens"] > two["totals"]["validation_tokens"]
        assert one["totals"]["validation_bytes"] == two["totals"]["validation_bytes"]
        sums = [each["totals"]["text_bytes"] + each["totals"]["validation_bytes"] for each in (one, third)]
        assert sums[0] == sums[1]


def test_a_worse_model_with_a_smaller_vocabulary_does_not_pass_by_its_lower_loss(
    corpora: tuple[Store, dict[str, PreparedData]],
) -> None:
    store, data = corpora
    better, worse = add_model(store, "better", data["large"], 12), add_model(store, "worse", data["small"], 4)
    of_better, of_worse = measure(store, better, data["large"]), measure(store, worse, data["small"])
    one, other = of_better.figures(), of_worse.figures()
    assert other["loss"] < one["loss"] and other["bits_per_byte"] > one["bits_per_byte"], "this is what misleads"
    crown(store, "lm", better, of_better)
    verdict = consider(store, "lm", worse, of_worse)
    assert not verdict.passed
    assert "it cannot be compared with the champion runs/better (tokenizer:" in verdict.reason
    assert "the champion cannot be measured in the same way: " in verdict.reason
    assert "set promotion.metric: bits_per_byte" in verdict.reason
    verdict = consider(store, "lm", worse, of_worse, "bits_per_byte")
    assert not verdict.passed and verdict.reason.endswith("needed at least +0")
    crown(store, "bits", worse, of_worse)
    assert consider(store, "bits", better, of_better, "bits_per_byte").passed
    champion = find_champion(store, "bits")
    assert champion is not None and champion.run == better and champion.measured_on == of_better.measured_on


@pytest.mark.parametrize("change", ["other text", "another choice of windows", "nothing was recorded"])
def test_a_champion_that_was_measured_on_something_else_is_measured_anew(
    change: str, corpora: tuple[Store, dict[str, PreparedData]]
) -> None:
    store, data = corpora
    name = change.replace(" ", "-")
    weak, strong = (
        add_model(store, f"weak-{name}", data["large"], 2),
        add_model(store, f"strong-{name}", data["large"], 12),
    )
    earlier = measure(store, weak, data["other"], **({"evaluation": {"max_windows": 1}} if "windows" in change else {}))
    flattered = {"loss": 0.1, "perplexity": 1.1, "bits_per_byte": 0.1}  # on text that is easier, say
    promote(store, name, weak, flattered, "first", None if "recorded" in change else earlier.measured_on)
    now = measure(store, strong, data["large"])
    verdict = consider(store, name, strong, now)
    theirs = measure(store, weak, data["large"], evaluation={"prompts": []}).figures()["loss"]
    assert verdict.passed, verdict.reason
    assert f"against the champion's {theirs:.4f}, measured again" in verdict.reason
    champion = find_champion(store, name)
    assert champion is not None and champion.run == strong


def test_a_champion_whose_model_is_gone_or_that_came_meanwhile_is_not_passed_by(
    corpora: tuple[Store, dict[str, PreparedData]],
) -> None:
    store, data = corpora
    old, new = add_model(store, "old", data["large"], 1), add_model(store, "new", data["large"], 2)
    found = measure(store, new, data["large"])
    promote(store, "gone", old, {"loss": 9.0}, "first")
    verdict = pass_through(store, PromotionConfig(name="gone", better_by=0), new, found.figures(), found.measured_on)
    assert not verdict.passed and "run the job again to measure the champion again" in verdict.reason
    shutil.rmtree(store.path(f"{old}/{FINAL}"))
    verdict = consider(store, "gone", new, found)
    assert not verdict.passed and "the champion cannot be measured in the same way: no checkpoint" in verdict.reason
    champion = find_champion(store, "gone")
    assert champion is not None and champion.run == old


def test_a_champion_of_labelled_data_is_measured_anew_on_this_validation_split(
    tuned: Finished, tmp_path: Path, runtime: Runtime
) -> None:
    store = Store(str(shutil.copytree(tuned.store, tmp_path / "store")))
    settings = json.loads(Path(store.path(f"{tuned.run}/config.json")).read_text())["job"]
    gate = {"name": "pairs", "metric": "accuracy", "better_by": 0.0}
    job = FinetuneJob.model_validate({**settings, "store": store.url, "promotion": gate})
    found = evaluate_run(job, tuned.run, silent())

    def considered(**config: Any) -> Verdict:
        with store.staging() as folder:
            for path in Path(store.path(f"{tuned.run}/{FINAL}")).iterdir():
                if path.name != MANIFEST:
                    shutil.copy(path, folder)
            own = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**own, **config}))
            publish_folder(store, folder, f"runs/earlier{len(config)}/{FINAL}", FINAL_KIND, "0" * 16, {"run": "0" * 16})
        promote(store, "pairs", f"runs/earlier{len(config)}", {"accuracy": 0.0}, "before figures were recorded")
        remeasured = measure_champion(job, tuned.run, found, silent(), runtime)
        assert job.promotion is not None
        return look(store, job.promotion, tuned.run, found.figures(), found.measured_on, remeasured)

    verdict = considered()
    theirs = found.groups["validation"].figures["accuracy"]
    assert verdict.passed and f"+0.0000 against the champion's {theirs:.4f}, measured again" in verdict.reason
    assert not Path(store.path("runs/earlier0/predictions")).exists()
    verdict = considered(id2label={"0": "match", "1": "other"})
    assert (
        not verdict.passed
        and "runs/earlier1/final predicts match, other, but the data has other, match" in verdict.reason
    )
    assert "bits_per_byte" not in verdict.reason


def test_the_number_of_shards_counts_if_their_first_tokens_are_many() -> None:
    def basis(shards: int, held_out: int, tokens: int) -> TextBasis:
        totals = {
            "validation_documents": 50, "validation_bytes": held_out, "validation_token_bytes": held_out,
            "validation_tokens": tokens,
        }  # fmt: skip
        details = {
            "corpus": "code", "validation_digest": "ab", "tokenizer_sha256": "0" * 64, "keeps_text": True,
            "num_shards": shards, "totals": totals,
        }  # fmt: skip
        return text_basis(["shards/code-1"], [details], 32, None, "fp32")

    few, many = basis(1, 10_000, 2_500), basis(40, 10_000, 2_500)
    assert why_incomparable("bits_per_byte", few, many) == ["shards of code: none here, 40 there"]
    assert not why_incomparable("bits_per_byte", many, basis(40, 10_000, 5_000)), "with another tokenizer"
    assert not why_incomparable("bits_per_byte", basis(1, 10**6, 250_000), basis(40, 10**6, 250_000))
    assert basis(80, 10_000, 2_500).begun == {"code": 50}, "at most as many as there are documents"


@pytest.mark.parametrize("passing", [False, True])
def test_a_champion_that_cannot_be_measured_for_now_is_measured_by_a_later_attempt(passing: bool) -> None:
    champion = Move(action="promote", run="runs/a", fingerprint="x", scores={"loss": 1.0}, time="t", reason="r")

    def measure() -> Result:
        raise ArtifactError("the hub is busy" if passing else "the model is missing", transient=passing)

    if passing:
        with pytest.raises(ArtifactError, match="the hub is busy"):
            remeasure(champion, measure)
    else:
        assert remeasure(champion, measure).problem == "the model is missing"

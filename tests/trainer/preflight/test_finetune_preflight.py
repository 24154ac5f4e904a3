"""The look at a fine-tuning job before the work: its data is read, its model's weights are measured, nothing is
made.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.labelled_data import as_jsonl, load, written
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode
from trainer.common.errors import ConfigError, CorpusError, PipelineError, RecordError
from trainer.common.progress import silent
from trainer.data.labelled import look as labelled_look
from trainer.data.labelled.look import HEAD_ROWS, SAMPLED, look_at_labelled
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.kinds.labelled import preflight
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.preflight import memory
from trainer.records.results import TuningPreflight, describe_balance
from trainer.store.storage import Store

COLA: dict[str, Any] = {
    "data__source": "csv", "data__text_columns": ["sentence"], "data__classes": None, "data__validation": None,
    "data__test": None, "data__id_column": None,
}  # fmt: skip


def look(pairs: Path, store: Path, model: Path, **changes: Any) -> TuningPreflight:
    return labelled_preflight(finetune_job(pairs, store, model, **changes), silent())


def test_the_look_finds_what_encoding_finds_and_plans_the_same_steps(
    pairs: Path, pretrained: Path, tmp_path: Path
) -> None:
    before = look(pairs, tmp_path / "store", pretrained)
    assert not list((tmp_path / "store").glob("encoded/*"))
    encode(finetune_job(pairs, tmp_path / "store", pretrained), silent())
    after = look(pairs, tmp_path / "store", pretrained)
    assert before.plan is not None
    assert (before.splits, before.plan) == (after.splits, after.plan)
    assert before.looked_at == f"all {sum((before.splits or {}).values())} examples"
    assert after.looked_at.startswith("encoded already: encoded/pairs-")
    lines = before.lines()
    assert f"checked         {before.looked_at}" in lines
    assert any(line.startswith("memory          about ") and line.endswith(" per rank") for line in lines)


def test_ranks_that_share_a_model_are_told_what_each_takes(
    pairs: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (preflight, memory):
        monkeypatch.setattr(module, "library_bytes", lambda: 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    changes = {"training__global_batch": 8, "training__processes": None}
    whole = look(pairs, tmp_path / "store", pretrained, **changes)
    shared = look(pairs, tmp_path / "store", pretrained, **changes, training__sharding="fsdp")
    assert 4 * shared.parameters <= shared.about_host_bytes < whole.about_host_bytes, (
        "with all of it before it is divided"
    )


@pytest.mark.parametrize("whole_bytes", [labelled_look.WHOLE_BYTES, 0], ids=["whole", "heads"])
def test_bad_data_is_refused_before_any_work(
    whole_bytes: int, pairs: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled_look, "WHOLE_BYTES", whole_bytes)

    def refused(kind: type[PipelineError], **changes: Any) -> str:
        with pytest.raises(kind) as caught:
            look(pairs, tmp_path / "store", pretrained, **changes)
        return str(caught.value)

    lines = [f"gj04\t{n % 2}\t\tSentence {n} ." for n in range(40)]
    cola = {**COLA, "data__train": [written(tmp_path / "cola.tsv", "\n".join(lines))]}
    assert "cola.tsv has no column 'sentence'; it has gj04, 0, , Sentence 0 .; if its first line" in refused(
        CorpusError, **cola
    )
    cola["data__columns"] = ["source", "label", "mark", "sentence"]
    found = look(pairs, tmp_path / "store", pretrained, **cola)
    assert (found.plan is None) == (whole_bytes == 0)
    if not whole_bytes:
        assert found.looked_at == f"the first {HEAD_ROWS:,} rows of each of 1 file"
    written(tmp_path / "cola.tsv", "\n".join([*lines, "gj04\t1\t"]))
    assert "cola.tsv: line 41: 3 columns, `columns` has 4" in refused(RecordError, **cola)
    written(
        tmp_path / "cola.tsv", "\n".join(line.replace("\t0\t", "\t0.5\t").replace("\t1\t", "\t1.0\t") for line in lines)
    )
    assert "set task to regression" in refused(CorpusError, **cola)
    assert look(pairs, tmp_path / "store", pretrained, **cola, data__task="regression").metrics == [
        "pearsonr",
        "spearmanr",
    ]
    written(tmp_path / "cola.tsv", "\n".join([*lines, "gj04\tmaybe\t\tNo ."]))
    assert "'maybe' is not a class" in refused(RecordError, **{**cola, "data__classes": ["no", "yes"]})


def test_classes_are_those_of_the_data_before_it_is_encoded(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", as_jsonl([{"a": f"text {n}", "label": "abc"[n % 3]} for n in range(60)]))
    files = {"data__train": [path], "data__validation": [path], "data__test": None, "data__text_columns": ["a"]}
    changes = {**files, "data__classes": None, "data__id_column": None, "evaluation__metrics": ["glue/mrpc"]}
    with pytest.raises(ConfigError, match="'glue/mrpc' is for two classes, but the data has 3"):
        look(pairs, tmp_path / "store", pretrained, **changes)
    data = finetune_job(pairs, tmp_path, pretrained, **changes).data
    found = look_at_labelled(Store(str(tmp_path / "store")), data, load_text_encoder(pretrained, data), silent())
    assert (found.classes, found.splits) == (["a", "b", "c"], {"train": 60, "validation": 60})


def test_classes_are_counted_and_texts_measured_before_anything_is_encoded(
    pairs: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"a": "word " * (1 + n % 20), "label": "yes" if n % 10 else "no"} for n in range(200)]
    path = written(tmp_path / "a.jsonl", as_jsonl(rows))
    changes = {
        "data__train": [path], "data__validation": [path], "data__test": None, "data__text_columns": ["a"],
        "data__classes": None, "data__id_column": None, "data__max_length": 12, "evaluation__metrics": None,
        "evaluation__positive_class": None,
    }  # fmt: skip
    before = look(pairs, tmp_path / "store", pretrained, **changes)
    assert before.balance == {"no": 20, "yes": 180}
    tokenizer = load(pretrained)
    lengths = [len(tokenizer(row["a"])["input_ids"]) for row in rows]
    cut = [min(length, 12) for length in lengths]
    expected = {"examples": 200, "mean": sum(cut) / 200, "longest": 12, "most": 12, "cut": sum(n > 12 for n in lengths)}
    assert before.lengths["train"].model_dump() == expected and 0 < expected["cut"] < 200
    lines = before.lines()
    assert "classes         no 20 (10.0%), yes 180 (90.0%)" in lines
    share = f"{expected['cut']} of 200 ({expected['cut'] / 200:.1%})"
    mean = f"{expected['mean']:.1f} tokens on average, 12 at most"
    assert f"train           200 examples; {mean}; {share} cut to 12" in lines
    encode(finetune_job(pairs, tmp_path / "store", pretrained, **changes), silent())
    after = look(pairs, tmp_path / "store", pretrained, **changes)
    assert (after.balance, after.lengths) == (before.balance, before.lengths)
    monkeypatch.setattr(labelled_look, "WHOLE_BYTES", 0)
    heads = look(pairs, tmp_path / "elsewhere", pretrained, **changes)
    assert (heads.splits, heads.balance) == (None, before.balance)
    assert heads.lengths["train"].examples == 200 // (HEAD_ROWS // SAMPLED), (
        "as if there were as many rows as are looked at"
    )


def test_if_several_classes_may_apply_their_shares_are_of_the_examples(
    pairs: Path, pretrained: Path, tmp_path: Path
) -> None:
    rows = [{"a": f"text {n}", "label": ["long"] * (n % 10 > 0) + ["odd"] * (n % 2)} for n in range(40)]
    path = written(tmp_path / "a.jsonl", as_jsonl(rows))
    changes = {
        "data__train": [path], "data__validation": [path], "data__test": None, "data__text_columns": ["a"],
        "data__task": "multi-label", "data__classes": None, "data__id_column": None, "evaluation__metrics": None,
        "evaluation__positive_class": None, "evaluation__best_by": "loss",
    }  # fmt: skip
    before = look(pairs, tmp_path / "store", pretrained, **changes)
    assert "classes         long 36 (90.0%), odd 20 (50.0%)" in before.lines()
    encode(finetune_job(pairs, tmp_path / "store", pretrained, **changes), silent())
    assert look(pairs, tmp_path / "store", pretrained, **changes).data_rows() == before.data_rows()


def test_a_model_whose_weights_are_cut_short_is_refused(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(pretrained, tmp_path / "model"))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(
        ConfigError, match=r"model\.safetensors is missing or damaged \(.* bytes, where its header describes"
    ):
        look(pairs, tmp_path / "store", model)


def test_control_characters_of_class_names_are_not_printed() -> None:
    assert (
        describe_balance({"red \x1b[31m": 3, "two\nlines": 1}) == r'"red \u001b[31m" 3 (75.0%), "two\nlines" 1 (25.0%)'
    )
